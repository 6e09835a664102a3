        // The products of a slice, added to the sums.
        {
            let y00 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right], LINE);
            let y01 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 4u], LINE);
            let y10 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 16u * LINE], LINE);
            let y11 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 16u * LINE + 4u], LINE);
#if PASSES == 3
            let y02 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 8u], LINE);
            let y03 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 12u], LINE);
            let y12 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 16u * LINE + 8u], LINE);
            let y13 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 16u * LINE + 12u], LINE);
#else
            let y20 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 32u * LINE], LINE);
            let y21 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 32u * LINE + 4u], LINE);
            let y30 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 48u * LINE], LINE);
            let y31 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 48u * LINE + 4u], LINE);
#endif
            {
                let line = down;
                var s0 = c00;
                var s1 = c01;
#if PASSES == 1
                var s2 = c02;
                var s3 = c03;
#endif
#include quant_products
                c00 = s0;
                c01 = s1;
#if PASSES == 1
                c02 = s2;
                c03 = s3;
#endif
            }
            {
                let line = down + 16u * LINE;
                var s0 = c10;
                var s1 = c11;
#if PASSES == 1
                var s2 = c12;
                var s3 = c13;
#endif
#include quant_products
                c10 = s0;
                c11 = s1;
#if PASSES == 1
                c12 = s2;
                c13 = s3;
#endif
            }
            {
                let line = down + 32u * LINE;
                var s0 = c20;
                var s1 = c21;
#if PASSES == 1
                var s2 = c22;
                var s3 = c23;
#endif
#include quant_products
                c20 = s0;
                c21 = s1;
#if PASSES == 1
                c22 = s2;
                c23 = s3;
#endif
            }
            {
                let line = down + 48u * LINE;
                var s0 = c30;
                var s1 = c31;
#if PASSES == 1
                var s2 = c32;
                var s3 = c33;
#endif
#include quant_products
                c30 = s0;
                c31 = s1;
#if PASSES == 1
                c32 = s2;
                c33 = s3;
#endif
            }
        }
