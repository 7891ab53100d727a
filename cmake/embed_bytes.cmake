# Run by vmem_embed_kernels: writes the bytes of the file INPUT (none if INPUT is empty) to OUTPUT,
# as a C array named SYMBOL.
set(bytes "")
set(count 0)
if(INPUT)
  file(SIZE "${INPUT}" count)
  file(READ "${INPUT}" bytes HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
endif()
if(count EQUAL 0)
  set(bytes "0")  # an array needs an element; SYMBOL_bytes is 0
endif()
file(WRITE "${OUTPUT}"
  "extern \"C\" const unsigned long ${SYMBOL}_bytes;\n"
  "const unsigned long ${SYMBOL}_bytes = ${count};\n"
  "extern \"C\" const unsigned char ${SYMBOL}[];\n"
  "alignas(64) const unsigned char ${SYMBOL}[] = {\n${bytes}};\n")
