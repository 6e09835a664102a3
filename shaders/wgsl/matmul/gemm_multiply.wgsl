        // The products of a slice, unrolled here because drivers do not unroll the loop, which takes a third longer.
        {
#if TILE == 32
            var at_k = (local / 64u) * (DEPTH / 4u);
#else
            var at_k = 0u;
#endif
#include gemm_four
#include gemm_four
#include gemm_four
#include gemm_four
#if TILE == 64
#include gemm_four
#include gemm_four
#include gemm_four
#include gemm_four
#endif
        }
