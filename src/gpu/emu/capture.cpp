#include "gpu/emu/capture.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "gpu/emu/context.hpp"

namespace vmem::emu::captures {
namespace {

std::mutex& captures_mutex() {
  static auto* mutex = new std::mutex;  // protects all captures and the list; leaf
  return *mutex;
}
std::vector<std::shared_ptr<Capture>>& active_captures() {
  static auto* list = new std::vector<std::shared_ptr<Capture>>;
  return *list;
}
std::atomic<int> active_count{0};  // lets calls check cheaply that nothing captures

void attach(Capture& capture, const std::shared_ptr<Capture>& self, Stream& stream) {
  capture.branches[&stream] = {stream.shared_from_this(), {}, 0, 0};
  stream.capture = self;
  stream.capturing.store(true, std::memory_order_release);
}

CUresult invalidate(Capture& capture, CUresult reason) {
  capture.invalid = true;
  return reason;
}

bool concerns_legacy(const Capture& capture, const Stream& legacy) {
  for (const auto& [stream, branch] : capture.branches)
    if (!stream->non_blocking() && stream->context() == legacy.context()) return true;
  return false;
}

// The legacy stream waits for blocking streams, so its work would depend on their captures.
CUresult check_legacy(const Stream& legacy) {
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : active_captures())
    if (concerns_legacy(*capture, legacy)) result = invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  return result;
}

void come_after(std::vector<Node*>& last, const std::vector<Node*>& others) {
  for (Node* other : others)
    if (!contains(last, other)) last.push_back(other);
}

// The checks common to all operations. REQUIRES captures_mutex. Counts a captured operation.
std::optional<CUresult> intercept_locked(Stream& stream) {
  if (stream.legacy()) {
    const CUresult result = check_legacy(stream);
    return result == CUDA_SUCCESS ? std::nullopt : std::optional(result);
  }
  if (!stream.capture) return std::nullopt;
  if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  ++stream.capture->branches[&stream].operations;
  return CUDA_SUCCESS;
}

bool nothing_captures() { return active_count.load(std::memory_order_acquire) == 0; }

CUresult join(Stream& stream, const Record& record) {
  Capture& capture = *record.capture;
  if (capture.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream.capture && stream.capture != record.capture)
    return invalidate(*stream.capture, invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_MERGE));
  const auto source = capture.branches.find(record.captured_stream);
  // The event's capture has ended.
  if (source == capture.branches.end()) return CUDA_ERROR_INVALID_VALUE;
  source->second.joined = std::max(source->second.joined, record.captured_operations);
  if (!stream.capture) attach(capture, record.capture, stream);
  Capture::Branch& branch = capture.branches[&stream];
  ++branch.operations;
  come_after(branch.last, record.captured_nodes);
  return CUDA_SUCCESS;
}

void detach_all(const std::shared_ptr<Capture>& capture) {
  for (auto& [key, branch] : capture->branches) {
    branch.stream->capturing.store(false, std::memory_order_release);
    branch.stream->capture = nullptr;
  }
  capture->branches.clear();
  capture->ended = true;  // for events that still refer to it
  capture->graph->capturing = false;
  std::erase(active_captures(), capture);
  active_count.fetch_sub(1, std::memory_order_acq_rel);
}

bool has_unjoined_work(const Capture& capture) {
  for (const auto& [stream, branch] : capture.branches)
    if (stream != capture.origin && branch.joined < branch.operations) return true;
  return false;
}

}  // namespace

CUresult begin(Stream& stream, CUstreamCaptureMode mode, std::shared_ptr<Graph> graph, CUgraph handle,
               std::vector<Node*> first) {
  const std::lock_guard lock(captures_mutex());
  if (stream.capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (graph->capturing.exchange(true)) return CUDA_ERROR_INVALID_VALUE;
  auto capture = std::make_shared<Capture>();
  capture->graph = std::move(graph);
  capture->handle = handle;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = &stream;
  attach(*capture, capture, stream);
  capture->branches[&stream].last = std::move(first);
  active_captures().push_back(capture);
  active_count.fetch_add(1, std::memory_order_acq_rel);
  return CUDA_SUCCESS;
}

CUresult end(Stream& stream, std::shared_ptr<Graph>& graph, CUgraph& handle) {
  const std::lock_guard lock(captures_mutex());
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != &stream) return invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  const bool unjoined = has_unjoined_work(*capture);
  detach_all(capture);
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (unjoined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  graph = capture->graph;
  handle = capture->handle;
  return CUDA_SUCCESS;
}

CUstreamCaptureStatus status(const Stream& stream) {
  if (!stream.capturing.load(std::memory_order_acquire)) return CU_STREAM_CAPTURE_STATUS_NONE;
  const std::lock_guard lock(captures_mutex());
  if (!stream.capture) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream.capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult check_status_query(const Stream& stream) {
  if (!stream.legacy() || nothing_captures()) return CUDA_SUCCESS;
  const std::lock_guard lock(captures_mutex());
  for (const auto& capture : active_captures())
    if (concerns_legacy(*capture, stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  return CUDA_SUCCESS;
}

void abandon(Stream& stream) {
  if (nothing_captures()) return;
  const std::lock_guard lock(captures_mutex());
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) return;
  invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  if (capture->origin == &stream) return detach_all(capture);
  stream.capturing.store(false, std::memory_order_release);
  stream.capture = nullptr;
  capture->branches.erase(&stream);
}

std::optional<CUresult> intercept_operation(Stream& stream, NodeWork* work) {
  if (nothing_captures()) return std::nullopt;
  const std::lock_guard lock(captures_mutex());
  const auto result = intercept_locked(stream);
  if (!result || *result != CUDA_SUCCESS) return result;
  if (!work) return invalidate(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  Capture::Branch& branch = stream.capture->branches[&stream];
  Node& node = stream.capture->graph->add(std::move(*work), std::move(branch.last));
  branch.last = {&node};
  return result;
}

std::optional<CUresult> intercept_record(Stream& stream, Event& event) {
  if (nothing_captures()) return std::nullopt;
  const std::lock_guard lock(captures_mutex());
  const std::shared_ptr<Capture> capture = stream.capture;
  const auto result = intercept_locked(stream);
  if (!result || *result != CUDA_SUCCESS) return result;
  auto record = std::make_shared<Record>();
  record->capture = capture;
  record->captured_stream = &stream;
  record->captured_operations = capture->branches[&stream].operations;
  record->captured_nodes = capture->branches[&stream].last;
  event.replace(std::move(record));
  return result;
}

std::optional<CUresult> intercept_wait(Stream& stream, const Record* record) {
  if (nothing_captures() && !(record && record->capture)) return std::nullopt;
  const std::lock_guard lock(captures_mutex());
  if (record && record->capture) {
    if (stream.legacy()) return invalidate(*record->capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    return join(stream, *record);
  }
  if (stream.capture && !stream.capture->invalid)
    return invalidate(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  return intercept_locked(stream);
}

CUresult check_unsafe_call(CUstreamCaptureMode thread_mode) {
  if (nothing_captures() || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  const std::lock_guard lock(captures_mutex());
  for (const auto& capture : active_captures()) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool concerned =
        own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
            : thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (concerned) result = invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  return result;
}

CUresult check_query(Stream& stream) {
  if (nothing_captures()) return CUDA_SUCCESS;
  const std::lock_guard lock(captures_mutex());
  if (stream.legacy()) return check_legacy(stream);
  return stream.capture ? invalidate(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) : CUDA_SUCCESS;
}

CUresult check_query(const Record* record) {
  if (!record || !record->capture) return CUDA_SUCCESS;
  const std::lock_guard lock(captures_mutex());
  return record->capture->ended ? CUDA_ERROR_INVALID_VALUE : invalidate(*record->capture, CUDA_ERROR_CAPTURED_EVENT);
}

}  // namespace vmem::emu::captures
