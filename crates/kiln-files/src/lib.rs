#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg(not(target_arch = "wasm32"))] // a browser has no files

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The number of temporary files that this process has named; several threads may write at the same time.
static NAMED: AtomicU64 = AtomicU64::new(0);

/// Writes a file under a temporary name in the same folder, waits until its contents are on the disk (some systems report a full disk
/// or an exceeded quota only then), and renames it, which replaces a file that has the name. A program that has the old file open or
/// mapped keeps it. A symbolic link is replaced by the file, and the permissions are those of a new file. After a power failure the
/// name leads to the old contents or to the new ones.
///
/// After an error or a panic of `write` the temporary file is removed. Temporary files of this name whose processes no longer run are
/// removed, too, once they are a second old. Systems without a list of processes in `/proc` keep them for an hour.
///
/// # Errors
/// The errors of `write` and of the file system. [`InvalidInput`](io::ErrorKind::InvalidInput) where the path has no file name, and
/// where a directory, a FIFO or a device has this name: a rename would replace a device.
pub fn replace(path: impl AsRef<Path>, write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>) -> io::Result<()> {
    let path = path.as_ref();
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let reason = "it is a directory, a FIFO or a device, not a file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it has no file name"))?;
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    remove_abandoned(path, &prefix);
    let (mut temporary, file) = Temporary::create(path, &prefix)?;
    let mut buffered = BufWriter::new(&file);
    write(&mut buffered)?;
    buffered.flush()?;
    drop(buffered);
    file.sync_all()?;
    std::fs::rename(&temporary.path, path)?;
    temporary.renamed = true;
    Ok(())
}

/// A file that does not have its final name yet. Dropping it removes it.
struct Temporary {
    path: PathBuf,
    renamed: bool,
}

impl Temporary {
    /// Creates a file that no other writer uses.
    fn create(path: &Path, prefix: &OsStr) -> io::Result<(Self, File)> {
        loop {
            let mut name = prefix.to_owned();
            name.push(format!("{}-{}", std::process::id(), NAMED.fetch_add(1, Ordering::Relaxed)));
            let temporary = path.with_file_name(name);
            match File::create_new(&temporary) {
                // A process of the same number writes it in another container, or has left it a moment ago.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => {
                    let file = created?;
                    // The lock says that the writer runs, even to containers that do not see its process. Where a file system has no
                    // locks, the number of the process has to do.
                    #[cfg(unix)]
                    let _ = file.try_lock();
                    return Ok((Self { path: temporary, renamed: false }, file));
                }
            }
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            // The caller gets the error that came first; the next writer tries again.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes the temporary files of a name whose writers no longer run.
fn remove_abandoned(path: &Path, prefix: &OsStr) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let writer = name.as_encoded_bytes().strip_prefix(prefix.as_encoded_bytes()).and_then(parse);
        if let Some((process, number)) = writer
            && is_abandoned(&entry, process, number)
        {
            // Another process may have removed it already.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// The numbers of the process and of the file in `PID-NUMBER`.
fn parse(name: &[u8]) -> Option<(u32, u64)> {
    let (process, number) = str::from_utf8(name).ok()?.split_once('-')?;
    // `parse` accepts a sign.
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(process) || !digits(number) {
        return None;
    }
    Some((process.parse().ok()?, number.parse().ok()?))
}

/// Whether the writer of a temporary file no longer runs.
fn is_abandoned(entry: &std::fs::DirEntry, process: u32, number: u64) -> bool {
    let processes = Path::new("/proc");
    let listed = cfg!(target_os = "linux") && processes.join("self").exists();
    // A file that was created a moment ago may not be locked yet.
    let least = Duration::from_secs(if listed { 1 } else { 3600 });
    // Not the metadata of what a symbolic link leads to; and opening a FIFO would wait for its other end.
    let Ok(found) = entry.metadata() else { return false };
    let age = found.modified().ok().and_then(|time| time.elapsed().ok());
    if !found.is_file() || age.is_none_or(|age| age < least) {
        return false;
    }
    let is_own = process == std::process::id();
    if is_own && number < NAMED.load(Ordering::Relaxed) {
        return false;
    }
    let locked = match File::options().write(true).open(entry.path()).map(|file| file.try_lock()) {
        Ok(Ok(())) => Some(false),
        Ok(Err(TryLockError::WouldBlock)) => Some(true),
        Ok(Err(TryLockError::Error(_))) | Err(_) => None,
    };
    match locked {
        Some(true) => false,
        // This process has not named it yet. In containers each program may be process 1: an earlier one has left this file, or, if the
        // file system has no locks, one of another container may be writing it.
        _ if is_own => locked == Some(false),
        _ => !(listed && processes.join(process.to_string()).exists()),
    }
}
