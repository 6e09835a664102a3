//! What a device was asked for.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since a device was opened. Differences of two are what happened between.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Lists of commands handed to the device.
    pub submissions: u64,
    /// Kernels run.
    pub dispatches: u64,
    /// Tensors sent to the device, and their bytes.
    pub uploads: u64,
    /// Bytes sent to the device.
    pub uploaded_bytes: u64,
    /// Buffers made to send tensors through; they are used again and again.
    pub upload_buffers: u64,
    /// Readings of results, each of one or several tensors.
    pub downloads: u64,
    /// Bytes read from the device.
    pub downloaded_bytes: u64,
}

impl std::ops::Sub for Statistics {
    type Output = Self;
    fn sub(self, earlier: Self) -> Self {
        Self {
            submissions: self.submissions - earlier.submissions,
            dispatches: self.dispatches - earlier.dispatches,
            uploads: self.uploads - earlier.uploads,
            uploaded_bytes: self.uploaded_bytes - earlier.uploaded_bytes,
            upload_buffers: self.upload_buffers - earlier.upload_buffers,
            downloads: self.downloads - earlier.downloads,
            downloaded_bytes: self.downloaded_bytes - earlier.downloaded_bytes,
        }
    }
}

impl std::fmt::Display for Statistics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { submissions, dispatches, uploads, uploaded_bytes, upload_buffers, downloads, downloaded_bytes } =
            self;
        write!(f, "{submissions} submissions of {dispatches} kernels, {uploads} uploads of {uploaded_bytes} bytes ")?;
        write!(f, "through {upload_buffers} buffers, ")?;
        write!(f, "{downloads} downloads of {downloaded_bytes} bytes")
    }
}

/// The counters of a device.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    submissions: AtomicU64,
    dispatches: AtomicU64,
    uploads: AtomicU64,
    uploaded_bytes: AtomicU64,
    upload_buffers: AtomicU64,
    downloads: AtomicU64,
    downloaded_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn submitted(&self, submissions: usize, dispatches: usize) {
        self.submissions.fetch_add(submissions as u64, Ordering::Relaxed);
        self.dispatches.fetch_add(dispatches as u64, Ordering::Relaxed);
    }

    pub(crate) fn uploaded(&self, bytes: usize) {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        self.uploaded_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn staged(&self) {
        self.upload_buffers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn downloaded(&self, bytes: u64) {
        self.downloads.fetch_add(1, Ordering::Relaxed);
        self.downloaded_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Statistics {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            submissions: of(&self.submissions),
            dispatches: of(&self.dispatches),
            uploads: of(&self.uploads),
            uploaded_bytes: of(&self.uploaded_bytes),
            upload_buffers: of(&self.upload_buffers),
            downloads: of(&self.downloads),
            downloaded_bytes: of(&self.downloaded_bytes),
        }
    }
}
