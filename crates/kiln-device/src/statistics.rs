//! Counts of the work of a device.

use std::sync::atomic::{AtomicU64, Ordering};

/// One count of a device.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

/// Defines [`Statistics`] and its counters.
macro_rules! statistics {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since a device was opened. The difference of two counts is the work between them.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Statistics {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl std::ops::Sub for Statistics {
            type Output = Self;
            fn sub(self, earlier: Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)* }
            }
        }

        /// The counters of a device.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: Counter,)*
        }

        impl Counters {
            /// The counts at this moment.
            pub fn read(&self) -> Statistics {
                Statistics { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

statistics! {
    /// Command lists submitted to the device.
    submissions,
    /// Kernels run.
    dispatches,
    /// Tensors uploaded to the device.
    uploads,
    /// Bytes uploaded to the device.
    uploaded_bytes,
    /// Buffers created for uploads; they are reused.
    upload_buffers,
    /// Downloads, each of one or several tensors.
    downloads,
    /// Bytes downloaded from the device.
    downloaded_bytes,
    /// Buffers created for downloads; they are reused.
    readback_buffers,
    /// Buffers created for kernels: for tensors, intermediate results, and parameters. Buffers of dropped tensors are
    /// reused.
    storage_buffers,
    /// Bind groups created. A program is bound once, however often it runs.
    bind_groups,
}

impl Statistics {
    /// Number of buffers of all kinds, and of bindings, that were created: 0 if work that ran before runs again.
    pub fn made(&self) -> u64 {
        self.upload_buffers + self.readback_buffers + self.storage_buffers + self.bind_groups
    }
}

impl std::fmt::Display for Statistics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { submissions, dispatches, uploads, uploaded_bytes, downloads, downloaded_bytes, .. } = self;
        write!(f, "{submissions} submissions of {dispatches} kernels, {uploads} uploads of {uploaded_bytes} bytes, ")?;
        write!(f, "{downloads} downloads of {downloaded_bytes} bytes; buffers created: ")?;
        let Self { upload_buffers, readback_buffers, storage_buffers, bind_groups, .. } = self;
        write!(f, "{upload_buffers} for uploads, {readback_buffers} for readings, {storage_buffers} for kernels, ")?;
        write!(f, "and {bind_groups} bindings")
    }
}

impl Counters {
    /// Counts submissions of kernels.
    pub fn submitted(&self, submissions: usize, dispatches: usize) {
        self.submissions.add(submissions as u64);
        self.dispatches.add(dispatches as u64);
    }

    /// Counts an upload of this many bytes.
    pub fn uploaded(&self, bytes: usize) {
        self.uploads.add(1);
        self.uploaded_bytes.add(bytes as u64);
    }

    /// Counts a download of this many bytes.
    pub fn downloaded(&self, bytes: u64) {
        self.downloads.add(1);
        self.downloaded_bytes.add(bytes);
    }
}
