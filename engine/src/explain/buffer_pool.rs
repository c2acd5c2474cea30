//! The buffer pool in one record: how large it is, may be and will be, and how well it serves.

use tidepool_pool::ResizeState;

use crate::db::Db;

/// What is to be known of the buffer pool at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct BufferPoolReport {
    /// `idle`, `growing`, `shrinking` or `stuck`.
    pub state: &'static str,
    /// The most it may hold now, bytes.
    pub size_bytes: u64,
    /// Memory that it holds now, bytes.
    pub resident_bytes: u64,
    /// The size it is on its way to, bytes.
    pub target_bytes: u64,
    /// The size that was asked for and is not to be passed, bytes; none = nobody asked for one.
    pub ceiling_bytes: Option<u64>,
    /// The tightest limit on the process's memory: bytes, and where it is set.
    pub limit: Option<(u64, String)>,
    /// Why it has this size: the last decision's sentence.
    pub why: String,
    /// Whether the engine chooses the size by itself.
    pub governed: bool,
    /// Bytes in a page.
    pub page_size_bytes: u64,
    /// Pages it may hold.
    pub pages_total: u64,
    /// Of these, without a page.
    pub pages_free: u64,
    /// Pages in it.
    pub pages_data: u64,
    /// Of these, differing from their file.
    pub pages_dirty: u64,
    /// Of these, next to go.
    pub pages_old: u64,
    /// Accesses to pages since the start.
    pub read_requests: u64,
    /// Of these, the ones that had to read the page from its file.
    pub reads: u64,
    /// The longest wait that a resize has caused any thread since the start, microseconds.
    pub longest_resize_wait_us: u64,
}

impl BufferPoolReport {
    /// Share of the accesses that found their page in memory, 0 to 1; none before the first access.
    pub fn hit_ratio(&self) -> Option<f64> {
        (self.read_requests > 0)
            .then(|| 1.0 - self.reads.min(self.read_requests) as f64 / self.read_requests as f64)
    }
}

impl Db {
    /// The buffer pool at this moment.
    pub fn buffer_pool(&self) -> BufferPoolReport {
        let stats = self.pool().stats();
        let resize = self.pool().resize_status();
        let governor = self.governor().report();
        BufferPoolReport {
            state: match resize.state {
                ResizeState::Idle => "idle",
                ResizeState::Growing => "growing",
                ResizeState::Shrinking => "shrinking",
                ResizeState::Stuck { .. } => "stuck",
            },
            size_bytes: resize.limit_bytes,
            resident_bytes: resize.resident_bytes,
            target_bytes: resize.target_bytes,
            ceiling_bytes: (governor.size_bytes != 0).then_some(governor.size_bytes),
            limit: governor.limit_bytes.map(|bytes| (bytes, governor.limit_place)),
            why: match resize.state {
                ResizeState::Stuck { why } => format!("{}; no progress: {why}", governor.why),
                _ => governor.why,
            },
            governed: governor.size_bytes == 0,
            page_size_bytes: stats.page_size_bytes,
            pages_total: stats.pages_total,
            pages_free: stats.pages_free,
            pages_data: stats.pages_data,
            pages_dirty: stats.pages_dirty,
            pages_old: stats.pages_old,
            read_requests: stats.read_requests,
            reads: stats.reads,
            longest_resize_wait_us: resize.longest_wait_us,
        }
    }
}
