// A second device for tests, made of PyTorch's PrivateUse1 hooks: ordinary memory, every operation run by the CPU.
//
// It refuses what a GPU refuses, operations that mix its tensors with those of the CPU, and counts what a GPU step costs:
//   launches          one for each operation that writes memory of the device; one for each group of tensors that a
//                     `_foreach` operation works on, by the group sizes of CUDA (110, 64, 48, 36, 30 for 1 to 5 lists);
//                     views and allocations count nothing;
//   synchronisations  wherever the host waits for the device: reading a number, copies in either direction except
//                     non-blocking ones from pinned memory, and operations whose output size depends on values. Events
//                     are recorded for copies alone, which wait for no kernel: waiting for one counts nothing.
// A non-blocking copy from pinned memory reads that memory as late as it may: when the next operation begins. Memory
// that is written to too early therefore gives wrong numbers, as on a GPU.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using torch::jit::Stack;

constexpr auto kind = DeviceType::PrivateUse1;

// -- counting --------------------------------------------------------------------------------------------------------

using Listener = void (*)(const char*, long, int);
enum Event { launch = 0, synchronisation = 1 };

Listener listener = nullptr;  // called with every event, if set
thread_local int inside = 0;  // the CPU is at work for an operation that was counted already

struct Inside {
  Inside() { ++inside; }
  ~Inside() { --inside; }
};

void count(Event event, const std::string& what, long times = 1) {
  if (!inside && listener) listener(what.c_str(), times, event);
}

// -- memory ----------------------------------------------------------------------------------------------------------

void* take(size_t bytes) { return bytes ? std::aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr; }

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* start = take(bytes);
    return {start, start, &std::free, Device(kind, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

Memory memory;

std::mutex pinned_lock;
std::map<char*, size_t> pinned;

void unpin(void* start) {
  std::lock_guard<std::mutex> guard(pinned_lock);
  pinned.erase(static_cast<char*>(start));
  std::free(start);
}

bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> guard(pinned_lock);
  auto after = pinned.upper_bound(static_cast<char*>(const_cast<void*>(address)));
  if (after == pinned.begin()) return false;
  --after;
  return static_cast<const char*>(address) < after->first + after->second;
}

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* start = take(bytes);
    if (start) {
      std::lock_guard<std::mutex> guard(pinned_lock);
      pinned[static_cast<char*>(start)] = bytes;
    }
    return {start, start, &unpin, Device(DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

PinnedMemory pinned_memory;

// The same memory as a tensor of the CPU.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  auto storage = tensor.storage();
  auto entries = static_cast<int64_t>(storage.nbytes() / tensor.element_size());
  auto whole = at::from_blob(storage.mutable_data(), {entries}, at::TensorOptions().dtype(tensor.dtype()));
  auto found = whole.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) found = found.conj();
  return tensor.is_neg() ? at::_neg_view(found) : found;
}

// -- copies ----------------------------------------------------------------------------------------------------------

std::mutex late_lock;
std::vector<std::pair<at::Tensor, at::Tensor>> late;  // (from, to) of copies that nobody has waited for

void finish_copies() {
  std::vector<std::pair<at::Tensor, at::Tensor>> due;
  {
    std::lock_guard<std::mutex> guard(late_lock);
    due.swap(late);
  }
  if (due.empty()) return;
  Inside within;
  at::AutoDispatchBelowADInplaceOrView below;
  for (auto& [from, to] : due) on_cpu(to).copy_(from);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  finish_copies();
  if (!self.numel()) return to;
  at::AutoDispatchBelowADInplaceOrView below;
  if (self.is_cpu() && non_blocking && is_pinned(self.const_data_ptr()) && self.dtype() == to.dtype()) {
    count(launch, "aten::copy_ from pinned memory");
    std::lock_guard<std::mutex> guard(late_lock);
    late.emplace_back(self, to);
    return to;
  }
  if (self.is_cpu() || to.is_cpu())
    count(synchronisation, self.is_cpu() ? "copy to device" : "copy to host");
  else
    count(launch, "aten::copy_");
  Inside within;
  on_cpu(to).copy_(on_cpu(self));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (to.sizes() != self.sizes()) at::native::resize_output(to, self.sizes());
  return copy_from(self, to, false);
}

at::Scalar read_number(const at::Tensor& self) {
  finish_copies();
  count(synchronisation, "read a number");
  Inside within;
  at::AutoDispatchBelowADInplaceOrView below;
  return at::_local_scalar_dense(on_cpu(self));
}

// -- the device ------------------------------------------------------------------------------------------------------

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kind> {
  static constexpr DeviceType static_type = kind;
  Device exchangeDevice(Device) const override { return Device(kind, 0); }
  Device getDevice() const override { return Device(kind, 0); }
  c10::Stream getStream(Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, Device(kind, 0)); }
  c10::Stream getNewStream(Device, int) const override { return c10::Stream(c10::Stream::UNSAFE, Device(kind, 0), 1); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  void record(void**, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override { finish_copies(); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    static at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  Device getDeviceFromPtr(void*) const override { return Device(kind, 0); }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    finish_copies();
    auto* impl = storage.unsafeGetStorageImpl();
    auto larger = memory.allocate(bytes);
    if (impl->data() && bytes) std::memcpy(larger.get(), impl->data(), std::min(bytes, impl->nbytes()));
    impl->set_data_ptr_noswap(std::move(larger));
    impl->set_nbytes(bytes);
  }
};

Hooks hooks;

// -- operations that only allocate or look at memory in another way --------------------------------------------------

const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);

at::ScalarType or_default(std::optional<at::ScalarType> dtype) {
  return dtype.value_or(c10::typeMetaToScalarType(c10::get_default_dtype()));
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, keys, or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, keys, or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> at) {
  return at::native::as_strided_tensorimpl(self, size, stride, at);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto entries = c10::multiply_integers(size) + self.storage_offset();
  auto bytes = static_cast<size_t>(entries) * self.element_size();
  if (self.storage().nbytes() < bytes) hooks.resizePrivateUse1Bytes(self.storage(), bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t at, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_storage_offset(at);
  if (stride.size() == size.size() && stride.data())
    impl->set_sizes_and_strides(size, stride);
  else
    impl->set_sizes_contiguous(size);
  return self;
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

// -- all other operations --------------------------------------------------------------------------------------------

const std::set<std::string> sized_by_values = {
    "aten::equal",      "aten::nonzero",    "aten::is_nonzero", "aten::_unique2", "aten::unique_consecutive",
    "aten::unique_dim", "aten::masked_select", "aten::bincount", "aten::repeat_interleave"};

struct Seen {
  bool device = false;
  std::string mixed;  // arguments on the CPU that are not single numbers
  void look(const at::Tensor& tensor, const std::string& name) {
    if (!tensor.defined()) return;
    if (!tensor.is_cpu())
      device = true;
    else if (tensor.dim())
      mixed += (mixed.empty() ? "" : ", ") + name;
  }
};

void check_one_device(const c10::OperatorHandle& op, const Stack* stack) {
  const auto& name = op.schema().name();
  const auto& arguments = op.schema().arguments();
  const bool indexing = name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_";
  Seen seen;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& value = torch::jit::peek(*stack, i, arguments.size());
    if (value.isTensor()) {
      seen.look(value.toTensor(), arguments[i].name());
    } else if (value.isTensorList()) {
      for (const at::Tensor& each : value.toTensorList()) seen.look(each, arguments[i].name());
    } else if (value.isOptionalTensorList()) {
      for (std::optional<at::Tensor> each : value.toOptionalTensorList()) {
        if (!each || !each->defined()) continue;
        if (indexing && each->is_cpu())
          count(synchronisation, "index on the host");
        else if (indexing && (each->scalar_type() == at::kBool || each->scalar_type() == at::kByte))
          count(synchronisation, "index by a mask");
        else
          seen.look(*each, arguments[i].name());
      }
    }
  }
  TORCH_CHECK(!seen.device || seen.mixed.empty(), name, " was given tensors of the second device and of the CPU (",
              seen.mixed, "): all must be on one device.");
}

void run(const c10::OperatorHandle& op, Stack* stack, long launches) {
  finish_copies();
  const auto& name = op.schema().name();
  if (sized_by_values.count(name)) count(synchronisation, name);
  count(launch, name, launches);
  if (!inside) check_one_device(op, stack);
  Inside within;
  at::native::cpu_fallback(op, stack);
}

void run_one(const c10::OperatorHandle& op, Stack* stack) { run(op, stack, 1); }

void run_together(const c10::OperatorHandle& op, Stack* stack) {
  constexpr long most[] = {110, 64, 48, 36, 30};
  const auto count_of = op.schema().arguments().size();
  long lists = 0, tensors = 0;
  for (size_t i = 0; i < count_of; ++i) {
    const auto& value = torch::jit::peek(*stack, i, count_of);
    if (!value.isTensorList()) continue;
    ++lists;
    tensors = std::max<long>(tensors, value.toTensorList().size());
  }
  const bool fresh = !op.schema().returns().empty() && op.schema().name().back() != '_';
  const long at_once = most[std::min(std::max(lists + fresh, 1L), 5L) - 1];
  run(op, stack, (tensors + at_once - 1) / at_once);
}

at::Tensor convolve(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b, at::IntArrayRef stride,
                    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
                    int64_t groups) {
  finish_copies();
  count(launch, "aten::convolution");
  TORCH_CHECK(!x.is_cpu() && !w.is_cpu(), "aten::convolution was given tensors of two devices.");
  Inside within;
  std::optional<at::Tensor> bias;
  if (b && b->defined()) bias = on_cpu(*b);
  return at::convolution(on_cpu(x), on_cpu(w), bias, stride, padding, dilation, transposed, output_padding, groups)
      .to(x.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolve_back(
    const at::Tensor& g, const at::Tensor& x, const at::Tensor& w, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding, int64_t groups,
    std::array<bool, 3> wanted) {
  finish_copies();
  count(launch, "aten::convolution_backward", wanted[0] + wanted[1] + wanted[2]);
  TORCH_CHECK(!g.is_cpu() && !x.is_cpu() && !w.is_cpu(), "aten::convolution_backward was given tensors of two devices.");
  Inside within;
  const int64_t outputs[] = {transposed ? w.size(1) * groups : w.size(0)};
  auto [a, b, c] = at::convolution_backward(on_cpu(g), on_cpu(x), on_cpu(w), at::IntArrayRef(outputs), stride, padding,
                                            dilation, transposed, output_padding, groups, wanted);
  auto moved = [&](const at::Tensor& t) { return t.defined() ? t.to(x.device()) : t; };
  return {moved(a), moved(b), moved(c)};
}

// Operations with one kernel on GPUs, which PyTorch would otherwise compose of several on an unknown device.
const char* const whole[] = {"native_layer_norm", "native_layer_norm_backward", "native_group_norm"};

}  // namespace

REGISTER_ALLOCATOR(kind, &memory);
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_one>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", as_strided);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", read_number);
  m.impl("convolution_overrideable", convolve);
  m.impl("convolution_backward_overrideable", convolve_back);
  for (const char* name : whole) m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_one>());
  for (const auto& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name.rfind("aten::_foreach_", 0) != 0) continue;
    auto name = op.name + (op.overload_name.empty() ? "" : "." + op.overload_name);
    m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_together>());
  }
}

extern "C" {
void second_device_install() { at::RegisterPrivateUse1HooksInterface(&hooks); }
void second_device_listen(Listener called) { listener = called; }
}
