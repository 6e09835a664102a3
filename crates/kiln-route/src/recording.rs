//! Recordings: the measurements of a machine, kept to judge decisions without it.

use crate::json::{self, Json, object};
use crate::profile::{Profile, ProfileProblem, corrupt, parsed};

/// The profile of a machine, and the times of problems that were measured beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// The profile that decides.
    pub profile: Profile,
    /// The measured problems.
    pub problems: Vec<RecordedProblem>,
}

object!(Recording { profile, problems });

/// The times of one problem, from host to host.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedProblem {
    /// The name. Problems with the same name are in the order of their measurements.
    pub name: String,
    /// Seconds on each place; `None` where a place was not worth waiting for.
    pub seconds: Vec<Option<f64>>,
}

object!(RecordedProblem { name, seconds });

impl Recording {
    /// The recording as JSON, with four digits of every number: further digits differ from run to run.
    pub fn to_json(&self) -> String {
        json::rounded(self.to_value()).to_string()
    }

    /// Reads a recording of any machine.
    ///
    /// # Errors
    /// The errors of [`Profile::from_json`], but for the machine.
    pub fn from_json(text: &str) -> Result<Self, ProfileProblem> {
        let value = parsed(text)?;
        let version = value["profile"]["version"].clone();
        let Self { profile, problems } = Self::from_value(value).map_err(|error| corrupt(version, &error))?;
        Ok(Self { profile: profile.of_this_version(None)?, problems })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backend, Machine, PROFILE_VERSION, Place};
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_recording_is_read_as_it_was_written() {
        let machine = Machine { name: "some machine".into(), threads: 2, instruction_set: "avx2".into(), cpus: None };
        let profile = Profile::new(machine, vec![Place::cpu("avx2 x1", Backend::Simd, 8, 1)]).unwrap();
        let problems = vec![RecordedProblem { name: "add [3]".into(), seconds: vec![Some(1.234_567e-7), None] }];
        let recording = Recording { profile, problems };
        let read = Recording::from_json(&recording.to_json()).unwrap();
        assert_eq!(read.problems[0].seconds, [Some(1.235e-7), None]);
        assert_eq!(Recording::from_json(&read.to_json()).unwrap(), read);
        let version = format!("\"version\":{PROFILE_VERSION}");
        for bad in ["", "{}", "[]", &recording.to_json().replace(&version, "\"version\":4")] {
            assert!(Recording::from_json(bad).is_err(), "{bad}");
        }
    }
}
