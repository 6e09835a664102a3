//! The parts in which texts are computed.

/// Graphs for parts of texts: the number of rows, and the minimum number of tokens for which the graph is used, because
/// unused rows are computed, too, and their results are discarded. The largest graph is only for whole parts, in which more rows share
/// the cost of decoding weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts(&'static [(usize, usize)]);

impl Parts {
    /// A GPU takes about as long for a few rows as for many: on an H100 graphs of 1, 64, 256 and 512 rows of a Llama of 8 B in
    /// Q4_K_M take 2.4, 8, 19 and 34 ms (`kiln-llm bench --device cuda -p N -n 0`).
    pub(crate) const GPU: Self = Self(&[(1, 1), (8, 3), (64, 17), (256, 136), (512, 385), (1024, 1000)]);
    /// On the CPU a row takes a third of the time in a graph of eight rows, a fourth in one of 64, and hardly less in larger ones. A page
    /// receives nothing during a part, so parts are short there.
    pub(crate) const CPU: Self = match cfg!(target_arch = "wasm32") {
        false => Self(&[(1, 1), (8, 4), (64, 50), (512, 480), (1024, 1000)]),
        true => Self(&[(1, 1), (8, 4), (64, 50)]),
    };

    /// The rows of the graph that computes the first of this many tokens.
    pub(crate) fn rows_for(self, tokens: usize) -> usize {
        self.0.iter().rev().find(|&&(_, fewest)| tokens >= fewest).map_or(1, |&(rows, _)| rows)
    }

    /// The rows of all graphs that are used for texts of up to this many tokens.
    pub(crate) fn up_to(self, tokens: usize) -> impl Iterator<Item = usize> {
        self.0.iter().filter(move |&&(_, fewest)| tokens >= fewest).map(|&(rows, _)| rows)
    }

    /// The minimum number of tokens of each graph, ascending.
    pub(crate) fn fewest(self) -> impl DoubleEndedIterator<Item = usize> {
        self.0.iter().map(|&(_, fewest)| fewest)
    }

    /// The rows of all graphs, the most first.
    pub(crate) fn descending(self) -> impl Iterator<Item = usize> {
        self.0.iter().rev().map(|&(rows, _)| rows)
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn texts_are_cut_into_few_parts_with_few_rows_in_vain() {
        let parts = |of: Parts, mut tokens: usize| {
            let mut parts = Vec::new();
            while tokens > 0 {
                parts.push(of.rows_for(tokens));
                tokens = tokens.saturating_sub(of.rows_for(tokens));
            }
            parts
        };
        let on_gpu = |tokens| parts(Parts::GPU, tokens);
        assert_eq!([1, 2, 5, 9].map(on_gpu), [vec![1], vec![1, 1], vec![8], vec![8, 1]]);
        assert_eq!([64, 65, 100, 600].map(on_gpu), [vec![64], vec![64, 1], vec![64, 64], vec![512, 64, 64]]);
        assert_eq!([16, 17, 200, 1000].map(on_gpu), [vec![8, 8], vec![64], vec![256], vec![1024]]);
        assert_eq!([2048, 2600].map(on_gpu), [vec![1024, 1024], vec![1024, 1024, 512, 64]]);
        let on_cpu = |tokens| parts(Parts::CPU, tokens);
        assert_eq!([3, 30, 100].map(on_cpu), [vec![1, 1, 1], vec![8, 8, 8, 8], vec![64, 8, 8, 8, 8, 8]]);
        let long = if cfg!(target_arch = "wasm32") { vec![64; 8] } else { vec![512] };
        assert_eq!([256, 600].map(on_cpu), [vec![64; 4], [long, vec![64, 8, 8, 8]].concat()]);
        for tokens in 1..5000 {
            assert!(on_gpu(tokens).iter().sum::<usize>() <= 4 * tokens, "{tokens}");
            assert!(on_cpu(tokens).iter().sum::<usize>() <= tokens + tokens / 3 + 4, "{tokens}");
        }
    }
}
