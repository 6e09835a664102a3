        // Four elements each of four queries or keys.
        if keys {
            v0 = key(at.x, count);
            v1 = key(at.y, count);
            v2 = key(at.z, count);
            v3 = key(at.w, count);
        } else {
            v0 = query(at.x, count);
            v1 = query(at.y, count);
            v2 = query(at.z, count);
            v3 = query(at.w, count);
        }
