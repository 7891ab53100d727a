// A loaded cuFile (GPUDirect Storage): reads from files into GPU memory.
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
    direct,  // only where libcufile moves bytes between disk and GPU memory by itself: with nvidia-fs, or PCI P2PDMA
    any      // where the machine cannot, also through host memory ("compatibility mode")
  };

  // The one that belongs to the driver: the emulated driver is its own. The library is never unloaded. It is opened once, directly if
  // the machine can, and stays as it was opened until the last of its owners is gone. Errors: UNSUPPORTED, saying why.
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

    // Any thread with a current context. Waits. How much was read: less than `bytes` at the file's end. Errors: DRIVER, whose native code
    // is an errno, or cuFile's own where it is above CU_FILE_CODES_BEGIN.
    Result<std::uint64_t> read(CUdeviceptr memory, std::uint64_t bytes, std::uint64_t offset) const;

   private:
    friend class CuFile;
    File(std::shared_ptr<const CuFile> cufile, CuFileHandle handle) : cufile_(std::move(cufile)), handle_(handle) {}

    std::shared_ptr<const CuFile> cufile_;
    CuFileHandle handle_ = nullptr;
  };
  // The descriptor must outlive the File, and has one at a time. Errors: UNSUPPORTED where the file cannot be read so (what
  // it is, where it lies); DRIVER.
  Result<File> open(int descriptor) const;

  bool direct() const noexcept { return direct_; }  // no copies through host memory
  std::string describe() const;                     // for people

 private:
  bool complete() const;
  Status open_driver(Accept accept);
  void allow_compat(bool allowed) const;
  void read_properties();

  const CuFileTable table_;
  const bool emulated_;
  // Constant once opened.
  bool opened_ = false;
  bool direct_ = false;
  int version_ = 0;  // 0: it does not say
  CuFileProperties properties_{};
};

}  // namespace vmem::gpu
