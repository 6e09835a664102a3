//! Files that are written whole or not at all.
#![cfg(not(target_arch = "wasm32"))] // a browser has no files

use std::fs::File;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use kiln_files::replace;

/// No process has this number: it is beyond the largest that Linux gives.
const NO_PROCESS: u32 = 4_194_305;

/// A folder of its own for each test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("kiln-files-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// Makes a file that was modified some seconds ago.
    fn old(&self, name: &str, seconds: u64) -> File {
        let file = File::create(self.0.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        file
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn is(path: &Path, contents: &str) -> bool {
    std::fs::read_to_string(path).unwrap() == contents
}

#[test]
fn readers_see_the_old_file_until_the_new_one_is_whole() {
    let folder = Folder::new("whole");
    let path = folder.0.join("file");
    replace(&path, |file| file.write_all(b"old")).unwrap();
    replace(&path, |file| {
        file.write_all(b"new")?;
        file.flush()?;
        assert!(is(&path, "old"));
        assert_eq!(folder.names().len(), 2, "the temporary file is in the same folder");
        Ok(())
    })
    .unwrap();
    assert!(is(&path, "new"));
    assert_eq!(folder.names(), ["file"]);
}

#[test]
fn an_error_or_a_panic_leaves_the_old_file_and_nothing_else() {
    let folder = Folder::new("error");
    let path = folder.0.join("file");
    replace(&path, |file| file.write_all(b"old")).unwrap();
    let error = replace(&path, |file| {
        file.write_all(b"half")?;
        Err(io::Error::other("no more"))
    });
    assert_eq!(error.unwrap_err().to_string(), "no more");
    let panic = catch_unwind(AssertUnwindSafe(|| replace(&path, |_| panic!("a writer"))));
    assert!(panic.is_err());
    assert!(is(&path, "old"));
    assert_eq!(folder.names(), ["file"]);
}

#[test]
fn several_threads_may_write_one_file() {
    let folder = Folder::new("threads");
    let path = folder.0.join("file");
    let contents = ["a".repeat(20_000), "b".repeat(30_000)];
    std::thread::scope(|scope| {
        for contents in &contents {
            let path = &path;
            scope.spawn(move || (0..20).for_each(|_| replace(path, |f| f.write_all(contents.as_bytes())).unwrap()));
        }
    });
    assert!(contents.iter().any(|contents| is(&path, contents)));
    assert_eq!(folder.names(), ["file"]);
}

#[test]
fn a_path_without_a_file_name_or_folder_is_an_error() {
    let folder = Folder::new("none");
    for path in [Path::new("/"), Path::new(""), &folder.0.join("..")] {
        assert_eq!(replace(path, |_| Ok(())).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{}", path.display());
    }
    let absent = replace(folder.0.join("absent/file"), |_| Ok(())).unwrap_err();
    assert_eq!(absent.kind(), io::ErrorKind::NotFound);
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_not_a_file_stays() {
    let folder = Folder::new("fifo");
    let fifo = folder.0.join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for path in [&fifo, &folder.0, Path::new("/dev/null"), Path::new("/dev/full")] {
        let error = replace(path, |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        assert!(!path.metadata().unwrap().is_file());
    }
}

#[test]
fn files_of_writers_that_were_killed_are_removed_after_an_hour_on_every_system() {
    let folder = Folder::new("hour");
    folder.old(&format!(".file.{NO_PROCESS}-7"), 7200);
    replace(folder.0.join("file"), |_| Ok(())).unwrap();
    assert_eq!(folder.names(), ["file"]);
}

#[cfg(target_os = "linux")]
#[test]
fn only_files_of_writers_that_no_longer_run_are_removed() {
    let folder = Folder::new("killed");
    let killed = format!(".file.{NO_PROCESS}-0");
    let own = std::process::id();
    // The file with number 0 is one that this process has written.
    replace(folder.0.join("another"), |_| Ok(())).unwrap();
    let kept = [
        // Written a moment ago.
        (format!(".file.{NO_PROCESS}-1"), 0),
        // Of running processes: the first one of the system, and this one.
        (".file.1-0".to_owned(), 7200),
        (format!(".file.{own}-0"), 7200),
        // Of other files.
        (format!(".other.{NO_PROCESS}-0"), 7200),
        (format!(".file.txt.{NO_PROCESS}-0"), 7200),
        (format!("file.{NO_PROCESS}-0"), 7200),
        // Of no writer.
        (format!(".file.{NO_PROCESS}"), 7200),
        (format!(".file.{NO_PROCESS}-notes"), 7200),
        (format!(".file.+{NO_PROCESS}-0"), 7200),
        (".file.99999999999-0".to_owned(), 7200),
    ];
    kept.iter().for_each(|(name, seconds)| drop(folder.old(name, *seconds)));
    folder.old(&killed, 2);
    // Neither is followed or opened.
    let link = format!(".file.{NO_PROCESS}-2");
    std::os::unix::fs::symlink("/dev/zero", folder.0.join(&link)).unwrap();
    replace(folder.0.join("file"), |_| Ok(())).unwrap();
    let mut expected: Vec<String> =
        kept.into_iter().map(|(name, _)| name).chain([link, "another".into(), "file".into()]).collect();
    expected.sort();
    assert_eq!(folder.names(), expected);
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_its_writer_has_locked_stays_although_its_process_is_not_seen() {
    let folder = Folder::new("locked");
    let name = format!(".file.{NO_PROCESS}-0");
    let file = folder.old(&name, 7200);
    file.try_lock().unwrap();
    replace(folder.0.join("file"), |_| Ok(())).unwrap();
    assert_eq!(folder.names(), [name.as_str(), "file"]);
    drop(file);
    replace(folder.0.join("file"), |_| Ok(())).unwrap();
    assert_eq!(folder.names(), ["file"]);
}

/// In a container each program may be process 1.
#[cfg(target_os = "linux")]
#[test]
fn a_file_of_an_earlier_process_of_the_same_number_is_no_obstacle() {
    let folder = Folder::new("same");
    let own = std::process::id();
    // One that is removed, since it is old, and some that are not: the file takes the next free name.
    folder.old(&format!(".file.{own}-1000000"), 2);
    (0..500).for_each(|number| drop(folder.old(&format!(".file.{own}-{number}"), 0)));
    replace(folder.0.join("file"), |_| Ok(())).unwrap();
    let names = folder.names();
    assert_eq!(names.len(), 501);
    assert!(names.contains(&"file".to_owned()) && !names.contains(&format!(".file.{own}-1000000")));
}
