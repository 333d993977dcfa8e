"""Running native CPU libraries. Needs numpy, tvm_ffi and libtvm_runtime.so only."""
