//! Shrinks MariaDB's pool without evicting the pages that still fit.
//!
//! Since 10.11.12 MariaDB gives back the end of the pool's address range. One pass over the LRU
//! list, from its cold end to its hot one, copies the pages there to free blocks elsewhere. The
//! page cleaner must then free the pages that the pass has left. It evicts from the cold end, at
//! any address, until it reaches those. They lie at the hot end, so it evicts the whole pool on the
//! way: of 732 MiB, 94 % went for a step of 36 MiB. The pass leaves a page for one of three
//! reasons:
//!
//! 1. *There was no free block for it.* So we first make the page cleaner free as many blocks as
//!    the step takes, by raising `innodb_lru_scan_depth`. It evicts the coldest pages.
//! 2. *The pass did not begin at the cold end.* The server remembers where the last pass was
//!    (`LRUItr`), which is at the hot end, and begins there again, unless that place has become one
//!    of the list's old part since. So as many pages must have been made young since the last step
//!    as the young part holds. (Queries that find no free block move that place, too.) With
//!    `innodb_old_blocks_pct` at its most, 95, that is a twentieth of the pages; and with
//!    `innodb_old_blocks_time` at 0 the queries come to it within a fraction of a second: with
//!    36,000 selects a second, of which three in four miss, in 0.1 s. An idle server has no queries
//!    that could do that: its second step evicts the whole pool.
//! 3. *A query was just using it.* Nothing can be done about that from outside. With sixteen
//!    threads that wait for a disk most of the time, it happens to every tenth step or so, and
//!    costs as much as the others.
//!
//! We handle the second reason before the first, because queries read into the freed blocks at
//! once, and the page cleaner begins again only when half of them are gone. Prepared in this way,
//! 49 of 53 steps of 96 and 192 MiB, 50 ms apart, kept the pages that fit; of 15 steps that waited
//! for the second for at most 100 ms, 8 did. A step took 40 to 150 ms.
//!
//! When the copying begins, the depth is at its least, 100, for a shrinking server evicts that many
//! pages *of the part that goes*, of which a small step has few.
//!
//! One compound statement does all of this and restores the settings, also when this process is
//! killed in the middle. When the *statement* is killed, its handler does not run, and
//! [`super::pool`] restores the settings.

use std::time::Duration;

/// The least that `innodb_lru_scan_depth` can be.
const SHALLOW: u64 = 100;
/// The most that `innodb_old_blocks_pct` can be.
const MOSTLY_OLD: u64 = 95;
/// How much of the pages must have been made young since the last step, per cent: somewhat more
/// than the young part then is, for a page may be made young twice.
const YOUNG_PERCENT: u64 = 6;
/// Queries go on reading while pages are copied, and take free blocks: this many, or a sixteenth of
/// a small pool.
const SPARE_PAGES: u64 = 1024;
/// A value of `innodb_max_dirty_pages_pct_lwm` that wakes the page cleaner of an idle server.
const WAKES: f64 = 0.001;
/// How long the server sleeps between two looks at the pages made young, and at the free ones.
const LOOKS_YOUNG: Duration = Duration::from_millis(5);
const LOOKS_FREE: Duration = Duration::from_millis(1);
/// The longest wait for the page cleaner, to begin and for each page. It frees a thousand pages in
/// 2 ms where it has a processor.
const CLEANER_BEGINS: Duration = Duration::from_millis(60);
const CLEANS_PAGE: Duration = Duration::from_micros(10);

/// The pool's pages and the settings that a step changes, as they are before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Before {
    /// Free pages.
    pub free: u64,
    /// Pages with data.
    pub data: u64,
    /// How many were ever made young.
    pub made_young: u64,
    /// The same, after the last step down. `None` before the first.
    pub made_young_at_last: Option<u64>,
    /// `innodb_old_blocks_pct`.
    pub old_percent: u64,
}

/// A step down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shrink {
    to_bytes: u64,
    /// Number of free pages that the page cleaner must provide.
    depth: u64,
    /// Number of free pages to wait for.
    free: u64,
    /// Where the last pass ended has become old as things are.
    aged: bool,
    /// Pages made young, ever, that are waited for.
    made_young: u64,
    /// Whether the queries have still to make some of these young.
    hurry: bool,
    patience: Duration,
}

impl Shrink {
    /// A step to `to_bytes` that takes `pages` away, for which the server waits `patience` at most
    /// until enough pages are young.
    pub fn new(to_bytes: u64, pages: u64, before: &Before, patience: Duration) -> Shrink {
        let spare = SPARE_PAGES.min((before.data + before.free) / 16);
        let want = pages + spare;
        // The page cleaner begins when less than half of the depth is free, and a little may become
        // free until it looks.
        let depth = if before.free < want { want.max(2 * before.free + spare) } else { 0 };
        let since = |at: u64| before.made_young.saturating_sub(at);
        let young = before.data * (100 - before.old_percent.min(100)) / 100;
        let aged = before.made_young_at_last.is_some_and(|at| since(at) >= young);
        // Before the first step that place may be anywhere, but hardly where a step leaves it.
        let wanted = |at: u64| at + before.data * YOUNG_PERCENT / 100;
        let made_young = before.made_young_at_last.map_or(0, wanted);
        Shrink {
            to_bytes,
            depth: depth.max(SHALLOW),
            free: pages + spare / 2,
            aged,
            made_young,
            hurry: made_young > before.made_young,
            patience,
        }
    }

    /// The statement that takes it.
    pub fn statement(&self) -> String {
        let Shrink { to_bytes, depth, free, made_young, patience, .. } = *self;
        // Not without need: the server walks along the list to find the new border.
        let old_percent = match self.aged {
            true => String::new(),
            false => format!("SET GLOBAL innodb_old_blocks_pct = {MOSTLY_OLD};"),
        };
        let old_time = if self.hurry { "SET GLOBAL innodb_old_blocks_time = 0;" } else { "" };
        let micros = |time: Duration| time.as_micros();
        let (wait, cleans) =
            (micros(patience), micros(CLEANER_BEGINS) + u128::from(free) * micros(CLEANS_PAGE));
        // A clock that is set back meanwhile must not make it wait for ever.
        let (young_looks, free_looks) = (wait / micros(LOOKS_YOUNG), cleans / micros(LOOKS_FREE));
        let (young_sleep, free_sleep) = (LOOKS_YOUNG.as_secs_f64(), LOOKS_FREE.as_secs_f64());
        let lacks = |counter: &str, least: u64| {
            format!(
                "EXISTS (SELECT * FROM information_schema.global_status
                         WHERE variable_name = 'Innodb_buffer_pool_pages_{counter}' AND variable_value + 0 < {least})"
            )
        };
        let (lacks_young, lacks_free) = (lacks("made_young", made_young), lacks("free", free));
        // The page cleaner of an idle server sleeps until it is to keep fewer pages dirty.
        format!(
            "BEGIN NOT ATOMIC
               DECLARE depth BIGINT UNSIGNED DEFAULT @@GLOBAL.innodb_lru_scan_depth;
               DECLARE pct BIGINT UNSIGNED DEFAULT @@GLOBAL.innodb_old_blocks_pct;
               DECLARE age BIGINT UNSIGNED DEFAULT @@GLOBAL.innodb_old_blocks_time;
               DECLARE end DATETIME(6) DEFAULT SYSDATE(6) + INTERVAL {wait} MICROSECOND;
               DECLARE dirty DOUBLE DEFAULT @@GLOBAL.innodb_max_dirty_pages_pct_lwm;
               DECLARE looks BIGINT UNSIGNED DEFAULT {young_looks};
               DECLARE EXIT HANDLER FOR SQLEXCEPTION
               BEGIN
                 SET GLOBAL innodb_lru_scan_depth = depth, GLOBAL innodb_old_blocks_pct = pct,
                     GLOBAL innodb_old_blocks_time = age, GLOBAL innodb_max_dirty_pages_pct_lwm = dirty;
                 RESIGNAL;
               END;
               {old_percent}
               {old_time}
               WHILE looks > 0 AND SYSDATE(6) < end AND {lacks_young} DO
                 DO SLEEP({young_sleep});
                 SET looks = looks - 1;
               END WHILE;
               SET GLOBAL innodb_lru_scan_depth = {depth};
               SET looks = {free_looks}, end = SYSDATE(6) + INTERVAL {cleans} MICROSECOND;
               WHILE looks > 0 AND SYSDATE(6) < end AND {lacks_free} DO
                 SET GLOBAL innodb_max_dirty_pages_pct_lwm = {WAKES};
                 SET GLOBAL innodb_max_dirty_pages_pct_lwm = dirty;
                 DO SLEEP({free_sleep});
                 SET looks = looks - 1;
               END WHILE;
               SET GLOBAL innodb_old_blocks_time = age, GLOBAL innodb_lru_scan_depth = {SHALLOW};
               SET GLOBAL innodb_buffer_pool_size = {to_bytes};
               SET GLOBAL innodb_lru_scan_depth = depth, GLOBAL innodb_old_blocks_pct = pct;
             END"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(100);
    const BEFORE: Before = Before {
        free: 1000,
        data: 40_000,
        made_young: 50_000,
        made_young_at_last: None,
        old_percent: 37,
    };

    #[test]
    fn as_many_pages_are_made_free_as_go_and_some_that_queries_take() {
        let shrink = Shrink::new(1 << 28, 4000, &BEFORE, PATIENCE);
        assert_eq!((shrink.depth, shrink.free), (5024, 4512));
        // A cleaner that keeps half of it free already would not begin.
        let half = Before { free: 3000, ..BEFORE };
        assert_eq!(Shrink::new(1 << 28, 4000, &half, PATIENCE).depth, 7024);
        let enough = Before { free: 30_000, ..BEFORE };
        assert_eq!(Shrink::new(1 << 28, 4000, &enough, PATIENCE).depth, SHALLOW);
        let small = Before { free: 100, data: 1500, ..BEFORE };
        assert_eq!(Shrink::new(1 << 24, 64, &small, PATIENCE).depth, 300);
    }

    #[test]
    fn a_pass_that_would_begin_where_the_last_one_ended_waits_until_that_place_is_old() {
        let shrink = |at| {
            let before = Before { made_young_at_last: at, ..BEFORE };
            let shrink = Shrink::new(1 << 28, 4000, &before, PATIENCE);
            (shrink.aged, shrink.made_young, shrink.hurry)
        };
        assert_eq!(shrink(None), (false, 0, false));
        // 63 % of 40,000 have been made young since.
        assert_eq!(shrink(Some(24_800)), (true, 27_200, false));
        assert_eq!(shrink(Some(24_801)), (false, 27_201, false));
        assert_eq!(shrink(Some(49_000)), (false, 51_400, true));
    }

    #[test]
    fn nothing_is_made_free_before_the_place_is_old() {
        let before = Before { made_young_at_last: Some(50_000), ..BEFORE };
        let text = Shrink::new(1 << 28, 4000, &before, PATIENCE).statement();
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} in {text}"));
        let waits = at("pages_made_young' AND variable_value + 0 < 52400");
        let frees = at("innodb_lru_scan_depth = 5024;");
        let resizes = at("innodb_buffer_pool_size = 268435456;");
        assert!(waits < frees && frees < at("pages_free' AND variable_value + 0 < 4512"));
        assert!(at("pages_free'") < resizes, "{text}");
    }

    #[test]
    fn only_what_is_needed_is_set() {
        let long_ago = Before { made_young_at_last: Some(1), ..BEFORE };
        let plain = Shrink::new(1 << 28, 4000, &long_ago, PATIENCE).statement();
        assert!(plain.contains("SET GLOBAL innodb_buffer_pool_size = 268435456;"), "{plain}");
        assert!(!plain.contains("innodb_old_blocks_pct = 95"), "{plain}");
        assert!(!plain.contains("innodb_old_blocks_time = 0"), "{plain}");
        let again = Before { made_young_at_last: Some(50_000), ..BEFORE };
        let again = Shrink::new(1 << 28, 4000, &again, PATIENCE).statement();
        assert!(again.contains("innodb_old_blocks_pct = 95;"), "{again}");
        assert!(again.contains("innodb_old_blocks_time = 0;"), "{again}");
    }
}
