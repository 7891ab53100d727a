// A loaded cuFile (GPUDirect Storage), for reads from files into GPU memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.hpp"
#include "gpu/cufile_table.hpp"
#include "gpu/driver.hpp"

namespace vmem::gpu {

class CuFile : public std::enable_shared_from_this<CuFile> {
  struct Private {};

 public:
  enum class Accept : std::uint8_t {
    // Requires that libcufile moves bytes between disk and GPU memory itself: through nvidia-fs or
    // PCI P2PDMA.
    direct,
    // Also allows copies through host memory ("compatibility mode") where the machine cannot.
    any
  };

  // Loads the cuFile that belongs to the driver (the emulated driver is its own). The library is
  // never unloaded. cuFile is opened once, directly if the machine can, and keeps that mode until
  // its last owner is gone. Errors: UNSUPPORTED, with the reason.
  static Result<std::shared_ptr<const CuFile>> load(const Driver& driver, Accept accept);
  CuFile(Private, const CuFileTable& table, bool emulated) : table_(table), emulated_(emulated) {}
  ~CuFile();
  CuFile(const CuFile&) = delete;
  CuFile& operator=(const CuFile&) = delete;

  class File {
   public:
    File() = default;
    File(File&& other) noexcept;
    File& operator=(File&& other) noexcept;
    ~File() { reset(); }
    explicit operator bool() const noexcept { return cufile_ != nullptr; }
    void reset() noexcept;

    // Blocks; any thread with a current context. Returns the bytes read: less than `bytes` at the
    // file's end. Errors: DRIVER, whose native code is an errno, or above CU_FILE_CODES_BEGIN a
    // cuFile code.
    Result<std::uint64_t> read(CUdeviceptr memory, std::uint64_t bytes, std::uint64_t offset) const;

   private:
    friend class CuFile;
    File(std::shared_ptr<const CuFile> cufile, CuFileHandle handle) : cufile_(std::move(cufile)), handle_(handle) {}

    std::shared_ptr<const CuFile> cufile_;
    CuFileHandle handle_ = nullptr;
  };
  // The descriptor must outlive the File; a descriptor can have only one File at a time. Errors:
  // UNSUPPORTED if cuFile cannot read this type of file or its file system; DRIVER.
  Result<File> open(int descriptor) const;

  bool direct() const noexcept { return direct_; }  // no copies through host memory
  std::string describe() const;                     // human-readable

 private:
  bool complete() const;
  Status open_driver(Accept accept);
  void allow_compat(bool allowed) const;
  void read_properties();

  const CuFileTable table_;
  const bool emulated_;
  // Constant after open_driver.
  bool opened_ = false;
  bool direct_ = false;
  int version_ = 0;  // 0: cuFile does not report it
  CuFileProperties properties_{};
};

}  // namespace vmem::gpu
