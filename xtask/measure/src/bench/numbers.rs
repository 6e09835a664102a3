//! Numbers as people read them.

/// Three significant digits.
pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "-".into(),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A count with separated thousands.
pub(super) fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// A size that is known to two digits.
pub(super) fn about(size: f64) -> String {
    let (size, prefix) = match size {
        s if s >= f64::from(1 << 20) => (s / f64::from(1 << 20), " Mi"),
        s if s >= f64::from(1 << 13) => (s / f64::from(1 << 10), " Ki"),
        s => (s, ""),
    };
    let unit = 10f64.powf(size.log10().floor() - 1.0);
    let rounded = (size / unit).round() * unit;
    if unit < 1.0 && !prefix.is_empty() { format!("{rounded:.1}{prefix}") } else { format!("{rounded:.0}{prefix}") }
}

/// A size, with a binary prefix if it is a whole multiple.
pub(super) fn size(n: usize) -> String {
    match n {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} Mi", n >> 20),
        n if n >= 1 << 13 && n.is_multiple_of(1 << 10) => format!("{} Ki", n >> 10),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0.1234, 1.234, 12.34, 1234.5].map(digits), ["0.123", "1.23", "12.3", "1234"]);
        assert_eq!([7, 999, 1000, 1_234_567].map(grouped), ["7", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]);
        assert_eq!([1000, 4096, 8192, 1 << 20, 3 << 20].map(size), ["1000", "4096", "8 Ki", "1 Mi", "3 Mi"]);
    }

    #[test]
    fn sizes_that_were_interpolated_have_two_digits() {
        let texts = [3.4, 345.6, 5123.0, 9000.0, 98_765.0, 1_500_000.0, 1e8].map(about);
        assert_eq!(texts, ["3", "350", "5100", "8.8 Ki", "96 Ki", "1.4 Mi", "95 Mi"]);
    }
}
