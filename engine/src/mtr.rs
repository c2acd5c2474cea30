//! Mini-transactions: changes of a few pages that reach the disk together or not at all.
//!
//! # Life
//! ```text
//! begin    waits for room in the redo log, holding nothing
//! latch    exclusive / new_page / adopt: what can fail, fails here
//! apply    changes bytes and notes the change for the log: cannot fail
//! commit   appends the frame and stamps the pages with its LSN, then lets go of the latches
//! ```
//! The commit of a transaction writes a number that is drawn when the frame gets its place in the
//! log ([`Mtr::apply_numbered`], [`Mtr::commit_numbered`]): so the numbers are in the order of the
//! log, and nothing but the drawing need be done one after the other.
//!
//! The latches are kept to the end (two-phase), so that no thread sees, and the cleaner never
//! writes, a half-done change: a page's LSN is true of every byte of it.
//!
//! A mini-transaction dropped before any `apply` has done nothing. Dropped after one, or with an
//! operation that its page refuses, its pages hold changes that the log will never know: the
//! environment stops writing for good, before the latches are released, so none of it can reach a
//! file. Nor does it reach a reader: a thread that latches a page of a tree, of the undo log or of
//! a chain from then on gets the error.
//!
//! # Rules for callers
//! - A thread holds no latch when it calls [`Mtr::begin`], for that may wait for the cleaner. A
//!   mini-transaction inside another one, or begun with a latch held, uses [`Mtr::begin_nested`],
//!   which never waits.
//! - Latch order: tree pages from the root down and from left to right, then undo pages, then space
//!   header and bitmap pages.
//! - After the first `apply` nothing may fail.

use std::cell::Cell;

use tidepool_pool::{Access, ExclusiveGuard, Lsn, PageId, PageType, Pool, Space};

use crate::env::Env;
use crate::error::Result;
use crate::page_op::PageOp;
use crate::redo::record::Writer;

/// A page of a mini-transaction. Only meaningful for the one that gave it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHandle(u32);

struct Latched<'a> {
    guard: ExclusiveGuard<'a>,
    changed: bool,
    /// Came from [`Mtr::new_page`]: its bytes and its LSN are not those that the log knows.
    fresh: bool,
}

/// Where a number goes that is not known yet.
struct NumberPlace {
    page: PageHandle,
    in_page: usize,
    in_log: usize,
}

/// Bytes of such a number.
const NUMBER_LEN: usize = size_of::<u64>();

thread_local! {
    /// The memory of the thread's last payload, for the next.
    static PAYLOAD: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Payload memory larger than this is not kept.
const PAYLOAD_KEPT_MAX: usize = 64 << 10;

/// See the module's description.
pub struct Mtr<'a> {
    env: &'a Env,
    pages: Vec<Option<Latched<'a>>>,
    log: Writer,
    number: Option<NumberPlace>,
    /// A page refused an operation; nothing of this must ever reach the log.
    broken: bool,
}

impl<'a> Mtr<'a> {
    /// Begins a mini-transaction; waits while the redo log is nearly full. The caller holds no
    /// latch.
    pub fn begin(env: &'a Env) -> Result<Self> {
        env.wait_for_redo_room()?;
        Ok(Self::new(env))
    }

    /// Begins a mini-transaction without a wait, for callers that hold a latch, and for the commit
    /// of what is prepared. The redo log keeps a reserve for these; a caller that writes much
    /// should let go of its latches and use [`Mtr::begin`].
    pub fn begin_nested(env: &'a Env) -> Result<Self> {
        env.check_writable()?;
        Ok(Self::new(env))
    }

    fn new(env: &'a Env) -> Self {
        // A thread that ends may have lost it: a transaction that is kept in a thread-local rolls
        // back then.
        let log = Writer::reusing(PAYLOAD.try_with(Cell::take).unwrap_or_default());
        Self { env, pages: Vec::with_capacity(8), log, number: None, broken: false }
    }

    /// The environment it changes.
    pub fn env(&self) -> &'a Env {
        self.env
    }

    /// Latches a page exclusively, or finds it among those latched already.
    pub fn exclusive(&mut self, space: &'a Space, no: u32) -> Result<PageHandle> {
        if let Some(handle) = self.find(PageId::new(space.id(), no)) {
            return Ok(handle);
        }
        let guard = self.env.pool().exclusive(space, no, Access::Normal)?;
        Ok(self.adopt(guard))
    }

    /// Latches a page whose old bytes don't matter: zeroed, without a read. The caller's first
    /// operation on it must set the whole page. If there is none, the page is formatted as a free
    /// one in the end, since what the log knows of the page is gone.
    pub fn new_page(&mut self, space: &'a Space, no: u32) -> Result<PageHandle> {
        if let Some(handle) = self.find(PageId::new(space.id(), no)) {
            return Ok(handle);
        }
        let guard = self.env.pool().new_page(space, no)?;
        Ok(self.add(guard, true))
    }

    /// Takes over a page that the caller has latched.
    pub fn adopt(&mut self, guard: ExclusiveGuard<'a>) -> PageHandle {
        self.add(guard, false)
    }

    fn add(&mut self, guard: ExclusiveGuard<'a>, fresh: bool) -> PageHandle {
        debug_assert!(self.find(guard.page_id()).is_none(), "one page, one latch");
        self.pages.push(Some(Latched { guard, changed: false, fresh }));
        PageHandle(self.pages.len() as u32 - 1)
    }

    /// The handle of a page that is latched already.
    pub fn find(&self, id: PageId) -> Option<PageHandle> {
        let is_it =
            |page: &Option<Latched<'a>>| page.as_ref().is_some_and(|p| p.guard.page_id() == id);
        self.pages.iter().position(is_it).map(|i| PageHandle(i as u32))
    }

    /// Lets go of a page before the end, which must not have been changed. Its handle is void from
    /// then on. (A page from [`Mtr::new_page`] stays latched all the same.)
    pub fn release(&mut self, page: PageHandle) {
        let page = &mut self.pages[page.0 as usize];
        assert!(
            page.as_ref().is_none_or(|page| !page.changed),
            "a changed page stays latched until its frame is in the log"
        );
        if page.as_ref().is_some_and(|page| !page.fresh) {
            *page = None;
        }
    }

    /// Gives new pages that nothing was done with a content that the log knows too.
    fn format_unused_pages(&mut self) {
        for i in 0..self.pages.len() {
            if self.pages[i].as_ref().is_some_and(|page| page.fresh && !page.changed) {
                let op = PageOp::Format { page_type: PageType::FREE, tree_id: 0 };
                self.apply(PageHandle(i as u32), &op);
            }
        }
    }

    /// The bytes of a page.
    pub fn page(&self, page: PageHandle) -> &[u8] {
        &self.latched(page).guard
    }

    /// Which page a handle stands for.
    pub fn page_id(&self, page: PageHandle) -> PageId {
        self.latched(page).guard.page_id()
    }

    fn latched(&self, page: PageHandle) -> &Latched<'a> {
        self.pages[page.0 as usize].as_ref().expect("the page was released")
    }

    /// Changes a page, and notes the change for the log. The only way bytes of a page ever change
    /// ([`Mtr::apply_numbered`] is one).
    ///
    /// An operation that the page refuses means that memory or code is broken; it stops all
    /// writing.
    pub fn apply(&mut self, page: PageHandle, op: &PageOp<'_>) {
        let page = self.pages[page.0 as usize].as_mut().expect("the page was released");
        let id = page.guard.page_id();
        page.changed = true;
        let body = self.log.page(id.space, id.no, |out| op.encode(out));
        debug_assert_eq!(
            PageOp::decode(&self.log.bytes()[body]).as_ref(),
            Ok(op),
            "recovery reads the same operation"
        );
        if let Err(error) = op.apply(page.guard.bytes_mut()) {
            self.broken = true;
            self.env.crash(format!(
                "an operation on page {} of space {} is impossible: {error}",
                id.no, id.space
            ));
        }
    }

    /// Writes `bytes` at `offset` of a page, except that the eight of them from `number_at` on are
    /// zero as yet: [`Mtr::commit_numbered`] puts a number there. Once in a mini-transaction.
    pub(crate) fn apply_numbered(
        &mut self,
        page: PageHandle,
        offset: usize,
        bytes: &[u8],
        number_at: usize,
    ) {
        assert!(self.number.is_none(), "a mini-transaction draws one number");
        assert_eq!(bytes[number_at..number_at + NUMBER_LEN], [0; NUMBER_LEN]);
        self.apply(page, &PageOp::Write { offset: offset as u32, bytes });
        // The operation's encoding ends with the bytes.
        let in_log = self.log.bytes().len() - bytes.len() + number_at;
        debug_assert_eq!(self.log.bytes()[in_log..in_log + NUMBER_LEN], [0; NUMBER_LEN]);
        self.number = Some(NumberPlace { page, in_page: offset + number_at, in_log });
    }

    /// Bytes of log written so far, header not included.
    pub fn log_len(&self) -> usize {
        self.log.bytes().len()
    }

    /// Appends the frame to the log and releases the pages. Returns the LSN that the log must be
    /// flushed to for this to be durable; zero if nothing was changed.
    pub fn commit(mut self) -> Lsn {
        self.format_unused_pages();
        self.append()
    }

    /// Commits, and draws the number that [`Mtr::apply_numbered`] has left a place for. `draw`
    /// calls what it gets once: that reserves the frame's place in the log. It sees to it that
    /// numbers and places come in the same order. Other threads may act on the number at once, for
    /// whatever they append lies behind this frame.
    pub(crate) fn commit_numbered(mut self, draw: impl FnOnce(&mut dyn FnMut()) -> u64) -> Lsn {
        self.format_unused_pages();
        if self.broken {
            draw(&mut || ());
            return self.env.redo().next_lsn();
        }
        let mut append = self.env.redo().begin_append(self.log.bytes().len());
        let number = draw(&mut || append.reserve()).to_le_bytes();
        if let Some(place) = self.number.take() {
            self.log.patch(place.in_log, &number);
            let page = self.pages[place.page.0 as usize].as_mut().expect("a changed page stays");
            page.guard.bytes_mut()[place.in_page..place.in_page + NUMBER_LEN]
                .copy_from_slice(&number);
        }
        let (pool, pages) = (self.env.pool(), &mut self.pages);
        let end = append.complete(self.log.bytes(), |start, end| mark(pool, pages, start, end));
        self.end();
        end
    }

    fn append(&mut self) -> Lsn {
        if self.log.is_empty() {
            return Lsn::ZERO;
        }
        if self.broken {
            // Dropped like an abandoned one. Every flush fails by now, this one's too.
            return self.env.redo().next_lsn();
        }
        assert!(self.number.is_none(), "the number has still to be drawn");
        let (pool, pages) = (self.env.pool(), &mut self.pages);
        let redo = self.env.redo();
        let end = redo.append(self.log.bytes(), |start, end| mark(pool, pages, start, end));
        self.end();
        end
    }

    /// Lets go of the pages, whose frame is in the log.
    #[inline]
    fn end(&mut self) {
        self.pages.clear();
        let payload = std::mem::take(&mut self.log).into_bytes();
        if payload.capacity() <= PAYLOAD_KEPT_MAX {
            let _ = PAYLOAD.try_with(|kept| kept.set(payload));
        }
    }
}

/// Marks the changed pages dirty.
fn mark(pool: &Pool, pages: &mut [Option<Latched<'_>>], start: Lsn, end: Lsn) {
    assert!(start < end, "a frame has a length");
    for page in pages.iter_mut().flatten().filter(|page| page.changed) {
        pool.mark_dirty(&mut page.guard, start, end);
    }
}

impl Drop for Mtr<'_> {
    fn drop(&mut self) {
        if self.log.is_empty() {
            self.format_unused_pages();
            self.append();
        } else {
            // Before the latches go: from now on no page is written, and none is believed.
            self.env.tear("a mini-transaction was abandoned after it had changed pages");
        }
    }
}
