//! Names of tensors of adapters: numbers of layers, and the error for the others.

use crate::Error;

/// A layer number as written in tensor names.
pub(super) fn layer_number(digits: &str) -> Option<usize> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// The error for a tensor of a projection that adapters may not change.
pub(super) fn unknown(name: &str, tensor: &str) -> Error {
    let what = match ["token_embd", "embed_tokens", "lm_head", "output."].iter().any(|part| tensor.contains(part)) {
        true => "changes the embedding or the head, which is not supported",
        false => "belongs to no projection that kiln adapts",
    };
    let can = "A and B of the projections Q, K, V, output, gate, up and down of layers are expected";
    Error::adapter(name, format!("tensor {tensor:?} {what}: {can}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_layers_are_digits() {
        for (digits, expected) in [("0", Some(0)), ("12", Some(12)), ("+1", None), ("", None), ("1e1", None)] {
            assert_eq!(layer_number(digits), expected, "{digits:?}");
        }
        assert_eq!(layer_number("99999999999999999999"), None);
    }
}
