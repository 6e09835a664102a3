        // Writes the sums to C; from the second time on they are added to it.
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
            put(base, origin.y + local / 8u, origin.x + 4u * (local % 8u), sum, again);
        }
#else
        {
            let row = origin.y + 4u * here.y;
            let column = origin.x + 4u * here.x;
            put(base, row, column, r0, again);
            put(base, row + 1u, column, r1, again);
            put(base, row + 2u, column, r2, again);
            put(base, row + 3u, column, r3, again);
#if TILE == 128
            put(base, row + 64u, column, r4, again);
            put(base, row + 65u, column, r5, again);
            put(base, row + 66u, column, r6, again);
            put(base, row + 67u, column, r7, again);
            put(base, row, column + 64u, s0, again);
            put(base, row + 1u, column + 64u, s1, again);
            put(base, row + 2u, column + 64u, s2, again);
            put(base, row + 3u, column + 64u, s3, again);
            put(base, row + 64u, column + 64u, s4, again);
            put(base, row + 65u, column + 64u, s5, again);
            put(base, row + 66u, column + 64u, s6, again);
            put(base, row + 67u, column + 64u, s7, again);
#endif
        }
#endif
