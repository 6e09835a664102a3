//! The results as a table in the terminal, a page, and a part of the documentation.

use super::gpus::Pays;
use super::numbers::about;

pub(super) mod docs;
pub(super) mod html;
mod models;
pub(super) mod plot;
pub(super) mod steady;
pub(super) mod table;

/// The sizes at which an adapter is faster, in words.
fn pays(pays: Pays) -> String {
    match pays {
        Pays::Never => "never in this range".into(),
        Pays::From(size) => format!("from {}", about(size)),
        Pays::Everywhere => "at every size".into(),
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
    fn sizes_that_pay_are_words() {
        assert_eq!(pays(Pays::From(345.6)), "from 350");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_735_689_599), "2024-12-31 23:59 UTC");
    }
}
