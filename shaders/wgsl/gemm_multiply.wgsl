        // The products of a slice.
        {
#if TILE == 32
            let first_k = (local / 64u) * (DEPTH / 4u);
            let last_k = first_k + DEPTH / 4u;
#else
            let first_k = 0u;
            let last_k = DEPTH;
#endif
            for (var at_k = first_k; at_k < last_k; at_k += 4u) {
                var ia = at_k * QUARTERS + place(here.y, at_k);
                var ib = 512u + at_k * QUARTERS + place(here.x, at_k);
#include gemm_step
#include gemm_step
#include gemm_step
#include gemm_step
            }
        }
