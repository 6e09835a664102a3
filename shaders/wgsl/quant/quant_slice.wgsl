        // The products of a slice, added to the sums.
        {
            let y00 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right], LINE);
            let y01 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 4u], LINE);
            let y02 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 8u], LINE);
            let y03 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 12u], LINE);
            let y10 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 16u * LINE], LINE);
            let y11 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 16u * LINE + 4u], LINE);
            let y12 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 16u * LINE + 8u], LINE);
            let y13 = coopLoad<coop_mat16x16<f16, B>>(&tile_b[right + 16u * LINE + 12u], LINE);
            {
                let line = down;
#include quant_products
                c00 = c00 + s0;
                c01 = c01 + s1;
            }
            {
                let line = down + 16u * LINE;
#include quant_products
                c10 = c10 + s0;
                c11 = c11 + s1;
            }
            {
                let line = down + 32u * LINE;
#include quant_products
                c20 = c20 + s0;
                c21 = c21 + s1;
            }
            {
                let line = down + 48u * LINE;
#include quant_products
                c30 = c30 + s0;
                c31 = c31 + s1;
            }
        }
