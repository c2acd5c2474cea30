//! Generated traces: the access patterns of the articles and of the literature, from a seed.
//!
//! Recorded traces are better evidence, generated ones are reproducible anywhere and cover corners.
//! Times are as if a server did some 20,000 statements a second.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::trace::{Request, Trace};

/// Statements a second of the foreground.
const STATEMENT_US: u64 = 50;

struct Builder {
    name: String,
    rng: StdRng,
    at_us: u64,
    statement: u64,
    requests: Vec<Request>,
}

impl Builder {
    fn new(name: &str, seed: u64) -> Self {
        Builder {
            name: name.into(),
            rng: StdRng::seed_from_u64(seed),
            at_us: 0,
            statement: 0,
            requests: Vec::new(),
        }
    }

    fn begin(&mut self) -> u64 {
        self.statement += 1;
        self.at_us += STATEMENT_US;
        self.statement
    }

    fn ask(&mut self, page: u64, statement: u64, scan: bool) {
        self.requests.push(Request { page, at_us: self.at_us, statement, scan, created: false });
    }

    fn done(self) -> Trace {
        Trace::new(&self.name, self.requests)
    }
}

/// Sysbench's Pareto: 80 % of the requests go to the first 20 % of the pages, again and again.
fn pareto(rng: &mut StdRng, pages: u64) -> u64 {
    let h: f64 = 0.2;
    let power = h.ln() / (1.0 - h).ln();
    ((pages as f64) * rng.random::<f64>().powf(power)) as u64 % pages
}

/// A point select on a uniformly chosen page, below an inner page that is always hot.
pub fn uniform(pages: u64, statements: usize, seed: u64) -> Trace {
    let mut b = Builder::new("uniform", seed);
    for _ in 0..statements {
        let statement = b.begin();
        let page = b.rng.random_range(0..pages);
        b.ask(pages + page / 500, statement, false);
        b.ask(page, statement, false);
    }
    b.done()
}

/// The same, chosen by Pareto.
pub fn skewed(pages: u64, statements: usize, seed: u64) -> Trace {
    let mut b = Builder::new("pareto", seed);
    for _ in 0..statements {
        let statement = b.begin();
        let page = pareto(&mut b.rng, pages);
        // Hot rows are spread over the file, as with hashed keys.
        let page = page.wrapping_mul(0x9E37_79B9_7F4A_7C15) % pages;
        b.ask(pages + page / 500, statement, false);
        b.ask(page, statement, false);
    }
    b.done()
}

/// Short ranges and point reads by Pareto, several requests of a statement on one page: what a
/// naive policy takes for reuse.
pub fn short_ranges(pages: u64, statements: usize, seed: u64) -> Trace {
    let mut b = Builder::new("short ranges", seed);
    for _ in 0..statements {
        let statement = b.begin();
        let first = pareto(&mut b.rng, pages - 2);
        for page in first..first + 2 {
            for _ in 0..b.rng.random_range(1..6) {
                b.ask(page, statement, false);
            }
        }
    }
    b.done()
}

/// Orders in the manner of TPC-C: hot warehouses and districts, skewed customers and items, and an
/// append-only tail that is read back soon.
pub fn orders(pages: u64, statements: usize, seed: u64) -> Trace {
    let mut b = Builder::new("orders", seed);
    let (hot, items, customers) = (8, pages / 5, pages / 2);
    let mut tail = pages * 4;
    for turn in 0..statements {
        let statement = b.begin();
        let page = b.rng.random_range(0..hot);
        b.ask(1 << 40 | page, statement, false);
        for _ in 0..5 {
            let item = pareto(&mut b.rng, items);
            b.ask(2 << 40 | item, statement, false);
            let stock = pareto(&mut b.rng, items * 2);
            b.ask(3 << 40 | stock, statement, false);
        }
        let customer = pareto(&mut b.rng, customers);
        b.ask(4 << 40 | customer, statement, false);
        if turn % 20 == 0 {
            tail += 1;
        }
        b.ask(5 << 40 | tail, statement, false);
        let recent = tail - b.rng.random_range(0..50).min(tail);
        b.ask(5 << 40 | recent, statement, false);
    }
    b.done()
}

/// Uniform use of a small table beside a dump of one eight times as large, in a loop, as the fourth
/// article has it. The dump touches each page some fifty times within a moment.
pub fn beside_a_dump(resident_pages: u64, statements: usize, announced: bool, seed: u64) -> Trace {
    let name = if announced { "beside a dump" } else { "beside a dump, not announced" };
    let mut b = Builder::new(name, seed);
    let big = resident_pages * 8;
    let mut position = 0;
    let dump_statement = u64::MAX / 2;
    for turn in 0..statements {
        let statement = b.begin();
        let page = b.rng.random_range(0..resident_pages);
        b.ask(page, statement, false);
        if turn % 4 == 0 {
            for _ in 0..3 {
                b.ask(1 << 40 | position, dump_statement + turn as u64 / (big * 4), announced);
            }
            position = (position + 1) % big;
        }
    }
    b.done()
}

/// A loop over a fixed set, by ordinary reads: the case in which LRU has no hit at all.
pub fn looping(pages: u64, rounds: usize, seed: u64) -> Trace {
    let mut b = Builder::new("loop", seed);
    for _ in 0..rounds {
        for page in 0..pages {
            let statement = b.begin();
            b.ask(page, statement, false);
        }
    }
    b.done()
}

/// Two scans of different tables by turns, unannounced, over a skewed foreground.
pub fn two_scans(pages: u64, statements: usize, seed: u64) -> Trace {
    let mut b = Builder::new("two scans", seed);
    let mut positions = [0u64; 2];
    let mut rounds = [0u64; 2];
    for turn in 0..statements {
        let statement = b.begin();
        let page = pareto(&mut b.rng, pages);
        b.ask(page, statement, false);
        let which = (turn / 2000) % 2;
        let position = &mut positions[which];
        // Each time a scan begins anew, it is another statement.
        let round = rounds[which];
        b.requests.push(Request {
            page: (which as u64 + 1) << 40 | *position,
            at_us: b.at_us,
            statement: u64::MAX - which as u64 - 2 * round,
            scan: false,
            created: false,
        });
        *position = (*position + 1) % (pages * 3);
        rounds[which] += u64::from(*position == 0);
    }
    b.done()
}

/// A working set that moves to other pages in the middle: immunity must not become blindness.
pub fn moving_set(pages: u64, statements: usize, seed: u64) -> Trace {
    let mut b = Builder::new("moving set", seed);
    for turn in 0..statements {
        let statement = b.begin();
        let phase = (turn * 4 / statements.max(1)) as u64;
        let page = pareto(&mut b.rng, pages);
        b.ask(phase << 40 | page, statement, false);
    }
    b.done()
}

/// The whole set at one scale: `pages` is the size of the data, most traces ask for some `requests`
/// pages.
pub fn all(pages: u64, requests: usize, seed: u64) -> Vec<Trace> {
    vec![
        uniform(pages, requests / 2, seed),
        skewed(pages, requests / 2, seed),
        short_ranges(pages, requests / 6, seed),
        orders(pages, requests / 14, seed),
        beside_a_dump(pages / 4, requests / 2, true, seed),
        beside_a_dump(pages / 4, requests / 2, false, seed),
        looping(pages / 2, requests / (pages as usize / 2).max(1), seed),
        two_scans(pages / 2, requests / 2, seed),
        moving_set(pages / 2, requests, seed),
    ]
}
