        // The sums go to C, and begin anew; from the second time on they are added to what is there.
#if TILE == 32
        workgroupBarrier();
        tile[4u * local] = r0;
        tile[4u * local + 1u] = r1;
        tile[4u * local + 2u] = r2;
        tile[4u * local + 3u] = r3;
        workgroupBarrier();
        {
            // One vector each of the tile.
            let at = (local / 32u) * 32u + 4u * (local % 8u) + (local / 8u) % 4u;
            let sum = (tile[at] + tile[at + 256u]) + (tile[at + 512u] + tile[at + 768u]);
            put(origin.y + local / 8u, origin.x + 4u * (local % 8u), sum, again);
        }
#else
        {
            let row = origin.y + 4u * here.y;
            let column = origin.x + 4u * here.x;
            put(row, column, r0, again);
            put(row + 1u, column, r1, again);
            put(row + 2u, column, r2, again);
            put(row + 3u, column, r3, again);
#if TILE == 128
            put(row + 64u, column, r4, again);
            put(row + 65u, column, r5, again);
            put(row + 66u, column, r6, again);
            put(row + 67u, column, r7, again);
            put(row, column + 64u, s0, again);
            put(row + 1u, column + 64u, s1, again);
            put(row + 2u, column + 64u, s2, again);
            put(row + 3u, column + 64u, s3, again);
            put(row + 64u, column + 64u, s4, again);
            put(row + 65u, column + 64u, s5, again);
            put(row + 66u, column + 64u, s6, again);
            put(row + 67u, column + 64u, s7, again);
            r4 = vec4<f32>();
            r5 = vec4<f32>();
            r6 = vec4<f32>();
            r7 = vec4<f32>();
            s0 = vec4<f32>();
            s1 = vec4<f32>();
            s2 = vec4<f32>();
            s3 = vec4<f32>();
            s4 = vec4<f32>();
            s5 = vec4<f32>();
            s6 = vec4<f32>();
            s7 = vec4<f32>();
#endif
        }
#endif
        r0 = vec4<f32>();
        r1 = vec4<f32>();
        r2 = vec4<f32>();
        r3 = vec4<f32>();
        again = true;
