// A simulated GPU for tests: PyTorch's backend PrivateUse1 with the arithmetic of the CPU and the rules of a GPU.
//
// Every operation runs on the CPU, on copies, after a check of its arguments. It refuses what CUDA refuses: tensors of two
// devices (scalars and indices from the CPU excepted) and generators of the CPU. On request it refuses float64, as MPS does.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/enum_tag.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/conv3d.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>

#include <cstdlib>
#include <cstring>

namespace {

using at::Tensor;
using Stack = torch::jit::Stack;
constexpr auto DEVICE = c10::DeviceType::PrivateUse1;
const c10::Device FIRST(DEVICE, 0);

// Memory

struct Allocator final : at::Allocator {
  at::DataPtr allocate(size_t size) override {
    void* data = size ? std::malloc(size) : nullptr;
    return {data, data, &std::free, FIRST};
  }
  at::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* target, const void* source, size_t size) const override { std::memcpy(target, source, size); }
};
Allocator allocator;
REGISTER_ALLOCATOR(DEVICE, &allocator);

bool has_float64 = true;

at::ScalarType checked(std::optional<at::ScalarType> dtype) {
  auto type = c10::dtype_or_default(dtype);
  TORCH_CHECK_TYPE(has_float64 || (type != at::kDouble && type != at::kComplexDouble), "this device has no float64");
  return type;
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<c10::Device>,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), checked(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &allocator, keys, checked(dtype));
}

Tensor on_host(const Tensor& x) {  // the same memory
  if (x.is_cpu()) return x;
  auto alias = at::from_blob(x.numel() ? x.data_ptr() : nullptr, x.sizes(), x.strides(), x.options().device(at::kCPU));
  alias._set_conj(x.is_conj());
  alias._set_neg(x.is_neg());
  return alias;
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool) {
  on_host(target).copy_(on_host(source));
  return target;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  return copy_from(source, target.sizes() == source.sizes() ? target : target.resize_(source.sizes()), false);
}

// Random numbers

struct Generator final : at::CPUGeneratorImpl {  // Mersenne twister, but of this device
  Generator() {
    device_ = FIRST;
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

const at::Generator& default_generator() {
  static auto generator = at::make_generator<Generator>();
  return generator;
}

struct Exchanged {  // while it lives, the default generator of the CPU continues the stream of another
  at::Generator host = at::detail::getDefaultCPUGenerator(), device;
  explicit Exchanged(at::Generator generator) : device(std::move(generator)) { exchange(); }
  ~Exchanged() { exchange(); }
  void exchange() {
    auto state = host.get_state();
    host.set_state(device.get_state());
    device.set_state(state);
  }
};

// Operations

struct Places {  // of the arguments of an operation
  bool device = false, host = false;
  void add(const Tensor& x, bool is_written) {
    if (!x.defined()) return;
    device |= x.device().type() == DEVICE;
    host |= x.is_cpu() && (x.dim() > 0 || is_written);  // scalars of the CPU may be read
  }
  void check(const std::string& name) const {
    TORCH_CHECK(!device || !host, "Expected all tensors to be on the same device, but found ", FIRST, " and cpu in ", name);
  }
};

void on_cpu(const c10::OperatorHandle& op, Stack* stack) {
  const auto& arguments = op.schema().arguments();
  Places places;
  auto generator = default_generator();
  for (size_t i = 0; i < arguments.size(); ++i) {
    auto& value = (*stack)[stack->size() - arguments.size() + i];
    if (value.isTensor()) {
      auto alias = arguments[i].alias_info();
      places.add(value.toTensor(), alias && alias->isWrite());
    } else if (value.isTensorList()) {
      for (const Tensor& x : value.toTensorList()) places.add(x, false);
    } else if (value.isOptionalTensorList()) {  // indices, which CUDA takes from the CPU too
      for (std::optional<Tensor> x : value.toOptionalTensorList()) places.device |= x && x->defined() && !x->is_cpu();
    } else if (value.isGenerator()) {
      generator = value.toGenerator();
      TORCH_CHECK(generator.device() == FIRST, "Expected a generator of ", FIRST, ", found cpu in ", op.schema().name());
      places.device = true;
      value = c10::IValue();
    }
  }
  places.check(op.schema().name());
  std::optional<Exchanged> stream;
  if (op.hasTag(at::Tag::nondeterministic_seeded)) stream.emplace(generator);
  at::native::cpu_fallback(op, stack);
}

void on_metadata(const c10::OperatorHandle& op, Stack* stack) {  // no arithmetic: the kernel of the CPU serves all memory
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

Tensor convolution(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, c10::IntArrayRef stride,
                   c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef output_padding,
                   int64_t groups) {
  Places places;
  for (const auto& y : {x, weight, bias.value_or(Tensor())}) places.add(y, false);
  places.check("convolution");
  auto host_bias = bias && bias->defined() ? std::optional<Tensor>(bias->cpu()) : std::nullopt;
  return at::convolution(x.cpu(), weight.cpu(), host_bias, stride, padding, dilation, transposed, output_padding, groups).to(FIRST);
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& gradient, const Tensor& x, const Tensor& weight,
                                                        c10::IntArrayRef stride, c10::IntArrayRef padding,
                                                        c10::IntArrayRef dilation, bool transposed,
                                                        c10::IntArrayRef output_padding, int64_t groups,
                                                        std::array<bool, 3> mask) {
  Places places;
  for (const auto& y : {gradient, x, weight}) places.add(y, false);
  places.check("convolution_backward");
  std::vector<int64_t> bias_size{transposed ? weight.size(1) * groups : weight.size(0)};
  auto [a, b, c] = at::convolution_backward(gradient.cpu(), x.cpu(), weight.cpu(), at::OptionalIntArrayRef(bias_size), stride,
                                            padding, dilation, transposed, output_padding, groups, mask);
  auto moved = [](const Tensor& y) { return y.defined() ? y.to(FIRST) : y; };
  return {moved(a), moved(b), moved(c)};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  for (const char* name : {"_local_scalar_dense", "_reshape_alias", "as_strided", "resize_", "set_", "set_.source_Storage",
                           "set_.source_Storage_storage_offset", "set_.source_Tensor", "unfold", "view", "view_as_complex",
                           "view_as_real"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_metadata>());
}

// Copies resolve lazy conjugates and negatives themselves.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(baddbmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv1d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv3d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(einsum, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
}

// The device for PyTorch

struct Guard final : c10::impl::NoOpDeviceGuardImpl<DEVICE> {
  c10::Device exchangeDevice(c10::Device) const noexcept override { return FIRST; }
  c10::Device getDevice() const noexcept override { return FIRST; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, FIRST); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return getStream(FIRST); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}
};
}  // namespace
namespace c10::impl {
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
}
namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Generator>(); }
};

TORCH_LIBRARY(simulated_gpu, m) {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  m.def("default_generator", [] { return default_generator(); });
  m.def("refuse_float64", [](bool refuse) { has_float64 = !refuse; });
}

}  // namespace
