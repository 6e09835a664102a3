//! The results as a table in the terminal, a page, and a part of the documentation.

use super::gpus::Pays;

pub(super) mod docs;
pub(super) mod html;
mod models;
pub(super) mod plot;
pub(super) mod table;

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
fn grouped(n: usize) -> String {
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

/// The sizes at which an adapter is faster, in words.
fn pays(pays: Pays) -> String {
    match pays {
        Pays::Never => "never in this range".into(),
        Pays::From(size) => format!("from {}", about(size)),
        Pays::Everywhere => "at every size".into(),
    }
}

/// A size that is known to two digits.
fn about(size: f64) -> String {
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

/// A date from seconds since 1970, UTC.
fn date(seconds: u64) -> String {
    // The civil calendar in eras of 400 years that begin on a first of March.
    let days = (seconds / 86_400) as i64 + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (seconds % 86_400 / 3600, seconds % 3600 / 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02} UTC")
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
    fn sizes_that_were_interpolated_are_told_to_two_digits() {
        let told = [3.4, 345.6, 5123.0, 9000.0, 98_765.0, 1_500_000.0, 1e8].map(about);
        assert_eq!(told, ["3", "350", "5100", "8.8 Ki", "96 Ki", "1.4 Mi", "95 Mi"]);
        assert_eq!(pays(Pays::From(345.6)), "from 350");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_735_689_599), "2024-12-31 23:59 UTC");
    }
}
