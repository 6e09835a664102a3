//! Dates as Python's `strftime` writes them, in UTC.

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAY: u64 = 24 * 60 * 60;

/// Seconds since 1970-01-01 00:00:00 UTC; 0 if the clock is before that.
pub(super) fn now() -> u64 {
    let since = web_time::SystemTime::now().duration_since(web_time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// A date of the proleptic Gregorian calendar.
struct Date {
    year: u64,
    /// From 0, January.
    month: usize,
    /// From 1 to 31.
    day: u64,
    /// From 0, January 1.
    day_of_year: u64,
    /// From 0, Sunday.
    weekday: usize,
}

impl Date {
    /// The date this many days after 1970-01-01, a Thursday.
    fn new(days: u64) -> Self {
        let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
        let length = |year| if is_leap(year) { 366 } else { 365 };
        // 400 years have 146 097 days, whichever year is the first.
        let (mut year, mut left) = (1970 + days / 146_097 * 400, days % 146_097);
        while left >= length(year) {
            left -= length(year);
            year += 1;
        }
        let day_of_year = left;
        let february = if is_leap(year) { 29 } else { 28 };
        let mut month = 0;
        for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if left < days {
                break;
            }
            left -= days;
            month += 1;
        }
        Self { year, month, day: left + 1, day_of_year, weekday: ((days + 4) % 7) as usize }
    }
}

/// Formats a time in seconds since 1970. `-` after the percent sign drops leading zeros, as in glibc.
///
/// # Errors
/// [`ErrorKind::InvalidOperation`] for unsupported directives.
pub(super) fn format(seconds: u64, format: &str) -> Result<String, Error> {
    let date = Date::new(seconds / DAY);
    let (hour, minute, second) = (seconds % DAY / 3600, seconds % 3600 / 60, seconds % 60);
    let hour_of_12 = (hour + 11) % 12 + 1;
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let mut directive = chars.next();
        let padded = directive != Some('-');
        if !padded {
            directive = chars.next();
        }
        let number = |value: u64, width: usize| match padded {
            true => format!("{value:0width$}"),
            false => value.to_string(),
        };
        text += &match directive {
            Some('a') => DAYS[date.weekday][..3].to_owned(),
            Some('A') => DAYS[date.weekday].to_owned(),
            Some('b' | 'h') => MONTHS[date.month][..3].to_owned(),
            Some('B') => MONTHS[date.month].to_owned(),
            Some('d') => number(date.day, 2),
            Some('e') if padded => format!("{:2}", date.day),
            Some('e') => date.day.to_string(),
            Some('D') => format!("{:02}/{:02}/{:02}", date.month + 1, date.day, date.year % 100),
            Some('F') => format!("{}-{:02}-{:02}", date.year, date.month + 1, date.day),
            Some('H') => number(hour, 2),
            Some('I') => number(hour_of_12, 2),
            Some('j') => number(date.day_of_year + 1, 3),
            Some('m') => number(date.month as u64 + 1, 2),
            Some('M') => number(minute, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('R') => format!("{hour:02}:{minute:02}"),
            Some('S') => number(second, 2),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('u') => if date.weekday == 0 { 7 } else { date.weekday }.to_string(),
            Some('w') => date.weekday.to_string(),
            Some('y') => number(date.year % 100, 2),
            Some('Y') => date.year.to_string(),
            Some('z') => "+0000".to_owned(),
            Some('Z') => "UTC".to_owned(),
            Some('%') => "%".to_owned(),
            other => {
                let found = other.map_or("nothing".to_owned(), |c| format!("{c:?}"));
                let reason = format!("strftime_now: {found} after a percent sign is not a known directive");
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
        };
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// Every directive; the expected texts are from Python 3.11 on Linux, in UTC.
    #[test]
    fn dates_are_those_of_python() {
        let all = "%a %A %b %B %d %e %-d %D %F %H %-I %I %j %m %-m %M %p %R %S %T %u %w %y %Y %%";
        for (seconds, expected) in [
            (
                0,
                "Thu Thursday Jan January 01  1 1 01/01/70 1970-01-01 00 12 12 001 01 1 00 AM 00:00 00 00:00:00 4 4 70 1970 %",
            ),
            (
                951_827_696,
                "Tue Tuesday Feb February 29 29 29 02/29/00 2000-02-29 12 12 12 060 02 2 34 PM 12:34 56 12:34:56 2 2 00 2000 %",
            ),
            (
                4_107_542_399,
                "Sun Sunday Feb February 28 28 28 02/28/00 2100-02-28 23 11 11 059 02 2 59 PM 23:59 59 23:59:59 7 0 00 2100 %",
            ),
            (
                1_735_646_400,
                "Tue Tuesday Dec December 31 31 31 12/31/24 2024-12-31 12 12 12 366 12 12 00 PM 12:00 00 12:00:00 2 2 24 2024 %",
            ),
        ] {
            assert_eq!(format(seconds, all).unwrap(), expected);
        }
        assert!(format(0, "%Q").is_err() && format(0, "%").is_err());
        assert!(format(u64::MAX, "%Y").is_ok());
    }
}
