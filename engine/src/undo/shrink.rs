//! The undo space gives back what a long history has left free.
//!
//! Pages of purged logs are free to be used again, but each stream keeps the page in which its next
//! log begins, wherever in the file that is; behind a long history it is at the end. So streams
//! without logs move to the lowest free pages, the one that is farthest behind first, and then the
//! space ends behind its last page in use.
//!
//! A stream moves by steps that it takes anyway: it gets another page, its head goes there, what is
//! before the head is freed. So a crash in between finds nothing new. The file is cut by
//! [`Env::close`](crate::env::Env::close), behind the checkpoint after which no recovery looks for
//! the pages that are gone.

use std::sync::atomic::Ordering;

use super::page::DATA_AT;
use super::stream::Undo;
use crate::error::Result;
use crate::format::entry::RollPointer;
use crate::format::space_header;
use crate::mtr::Mtr;
use crate::space::{self, Allocation};

impl Undo {
    /// Makes the space shorter if that gives back at least `least` pages; returns how many. Streams
    /// that a transaction uses, or that have a history, stay where they are.
    pub fn shrink(&self, least: u32) -> Result<u32> {
        let space = self.space();
        let size = space_header::read(self.env().pool(), space)?.size_pages;
        let allocated = space::allocated_pages(self.env(), space)?.len() as u32;
        if size - allocated < least.max(1) {
            return Ok(0);
        }
        // No thread gets one of these meanwhile.
        let streams = 0..self.stream_count();
        let free: Vec<u32> = streams.filter(|&no| self.streams[no as usize].take()).collect();
        let moved = self.move_down(&free);
        free.iter().for_each(|&no| self.streams[no as usize].give_back());
        moved?;
        space::cut_free_tail(self.env(), space, least)
    }

    /// Moves those of the streams that have no log to lower pages, as far as there are such.
    fn move_down(&self, streams: &[u32]) -> Result<()> {
        let state = |stream: u32| &self.streams[stream as usize];
        let is_empty = |stream: &u32| state(*stream).committed.load(Ordering::Acquire) == 0;
        let mut empty: Vec<(RollPointer, u32)> = streams
            .iter()
            .copied()
            .filter(is_empty)
            .map(|stream| (*state(stream).tail.lock(), stream))
            .collect();
        empty.sort_unstable_by_key(|(tail, _)| std::cmp::Reverse(tail.page));
        for (tail, stream) in empty {
            let Some(lower) = self.append_lower_page(stream, tail.page)? else { break };
            let start = RollPointer { page: lower, offset: DATA_AT as u16 };
            *state(stream).tail.lock() = start;
            self.move_head(stream, start)?;
            self.free_before_head(stream)?;
        }
        Ok(())
    }

    /// Appends an empty page behind `last`, the stream's last one, that lies before it in the file;
    /// none if there is none.
    fn append_lower_page(&self, stream: u32, last: u32) -> Result<Option<u32>> {
        let mut mtr = Mtr::begin(self.env())?;
        let before = self.exclusive(&mut mtr, last, stream)?;
        let allocation = Allocation::reserve(&mut mtr, self.space(), 0, 1)?;
        if allocation.next_page() > last {
            return Ok(None);
        }
        Ok(Some(self.append_taken(mtr, stream, (last, before), allocation)))
    }
}
