//! Tables made, loaded, dropped, renamed, truncated and rebuilt; the second index added and dropped.

use rand::prelude::*;
use std::sync::Arc;
use tidepool::{ChangedIndex, Error, IndexDef, Table, TableDef, TableLoad};

use crate::model::{Model, Rows, TableNo, Writes, second_key};
use crate::{Loading, PowerCut, Step, World};

fn name_of(n: u32) -> String {
    format!("t{n}")
}

impl World {
    pub fn definition(&mut self) -> Step {
        self.aim();
        let name = name_of(self.random.random_range(0..6));
        if let Some(loading) = self.loading.take_if(|loading| loading.name == name) {
            if self.random.random_ratio(3, 4) {
                return self.end_load(loading);
            }
            self.loading = Some(loading);
            let def = TableDef::new([IndexDef::unique("primary")]);
            return self.must_be_busy(self.db.create_table(&name, &def), &name);
        }
        let Some(no) = self.model.names.get(&name).copied() else {
            return match self.random.random_ratio(1, 3) {
                true => self.load_table(name),
                false => self.create_table(name),
            };
        };
        trace!("definition of {name} = t{no}");
        match self.random.random_range(0..6) {
            0 => self.drop_table(name, no),
            1 => self.rename_table(name, no),
            2 | 3 => self.add_or_drop_index(name, no),
            4 => self.rebuild_table(name, no),
            _ => self.truncate_table(name, no),
        }
    }

    pub fn create_table(&mut self, name: String) -> Step {
        let mut after = self.model.clone();
        after.names.insert(name.clone(), self.next_table);
        after.rows.insert(self.next_table, Rows::new());
        after.indexed.insert(self.next_table);
        trace!("create {name} = t{}", self.next_table);
        self.in_flight = Some(after.clone());
        let def = TableDef::new([IndexDef::unique("primary"), IndexDef::non_unique("second")]);
        let created = self.db.create_table(&name, &def);
        if self.is_disk_error(&created) {
            self.in_flight = None;
            self.next_table += 1;
            return Ok(());
        }
        self.handles.insert(self.next_table, self.must(created)?);
        self.note_definition(self.next_table);
        self.next_table += 1;
        self.defined(after)
    }

    /// A table is filled, now and then on a full disk. What becomes of it shows now, or when other
    /// things have happened.
    pub fn load_table(&mut self, name: String) -> Step {
        let rows = self.rows_to_load();
        let no = self.next_table;
        self.next_table += 1;
        let full = self.random.random_ratio(1, 8);
        if full {
            self.sim.set_capacity(Some(self.sim.used_bytes()));
        }
        let filled = self.fill_table(&name, &rows);
        if full {
            self.sim.set_capacity(None);
        }
        let outcome = filled.as_ref().map(drop);
        trace!("load {name} = t{no}: {} rows, disk full {full}: {outcome:?}", rows.len());
        let is_full = full && matches!(filled, Err(Error::NoSpace(_))) && !self.is_over();
        if is_full || self.is_disk_error(&filled) {
            return Ok(());
        }
        let loading = Loading { load: self.must(filled)?, name, rows, no };
        if self.loading.is_none() && self.random.random() {
            self.loading = Some(loading);
            return Ok(());
        }
        self.end_load(loading)
    }

    fn end_load(&mut self, loading: Loading) -> Step {
        let Loading { load, name, rows, no } = loading;
        if self.random.random_ratio(1, 6) {
            trace!("the load of {name} is given up");
            drop(load);
            return if self.is_over() { Err(PowerCut) } else { Ok(()) };
        }
        let mut after = self.model.clone();
        after.names.insert(name.clone(), no);
        after.rows.insert(no, rows);
        after.indexed.insert(no);
        self.in_flight = Some(after.clone());
        let loaded = load.commit();
        trace!("the load of {name} ends: {loaded:?}");
        if self.is_disk_error(&loaded) {
            self.in_flight = None;
            return Ok(());
        }
        self.handles.insert(no, self.must(loaded)?);
        self.note_definition(no);
        self.defined(after)
    }

    /// The name of the table that is being filled is taken.
    fn must_be_busy<T>(&self, refused: Result<T, Error>, name: &str) -> Step {
        if self.is_over() {
            return Err(PowerCut);
        }
        let refusal = Error::TableBusy(name.to_owned());
        assert_eq!(refused.err(), Some(refusal), "seed {}", self.seed);
        Ok(())
    }

    fn rows_to_load(&mut self) -> Rows {
        let count = *[0, 20, 300].choose(&mut self.random).expect("there are some");
        let mut rows = Rows::new();
        for _ in 0..count {
            let len = match self.random.random_range(0..30) {
                0 => self.random.random_range(2000..60_000),
                _ => self.random.random_range(0..400),
            };
            let key = format!("k{}", self.random.random_range(0..count)).into_bytes();
            rows.insert(key, (0..len).map(|i| (i * 37) as u8).collect());
        }
        rows
    }

    fn fill_table(&mut self, name: &str, rows: &Rows) -> Result<TableLoad, Error> {
        let def = TableDef::new([IndexDef::unique("primary"), IndexDef::non_unique("second")]);
        let mut load = self.db.load_table(name, &def)?;
        let in_order = self.random.random::<bool>();
        let mut keys: Vec<_> = rows.keys().collect();
        if !in_order {
            keys.shuffle(&mut self.random);
        }
        for key in keys {
            match in_order {
                true => load.push(0, key, &rows[key])?,
                false => load.add(0, key, &rows[key])?,
            }
            load.add(1, &second_key(key), b"loaded")?;
            if self.random.random_ratio(1, 50) {
                self.db.step_cleaner()?;
                self.db.step_checkpoint()?;
            }
        }
        Ok(load)
    }

    pub fn drop_table(&mut self, name: String, no: TableNo) -> Step {
        let mut after = self.model.clone();
        after.names.remove(&name);
        after.rows.remove(&no);
        after.indexed.remove(&no);
        self.in_flight = Some(after.clone());
        let dropped = self.db.drop_table(&name);
        let is_busy = self.is_used_by_prepared(no) || self.is_used_by_session(no);
        if self.unless_busy(dropped, &name, is_busy)?.is_some() {
            self.handles.remove(&no);
            self.note_vacated(name, no);
            self.defined(after)?;
        }
        Ok(())
    }

    pub fn rename_table(&mut self, name: String, no: TableNo) -> Step {
        let to = name_of(self.random.random_range(0..6));
        if self.loading.as_ref().is_some_and(|loading| loading.name == to) {
            return self.must_be_busy(self.db.rename_table(&name, &to), &to);
        }
        if self.model.names.contains_key(&to) {
            let refused = self.db.rename_table(&name, &to);
            if self.is_over() {
                return Err(PowerCut);
            }
            assert_eq!(refused, Err(Error::TableExists(to)), "seed {}", self.seed);
            return Ok(());
        }
        let mut after = self.model.clone();
        after.names.remove(&name);
        after.names.insert(to.clone(), no);
        self.in_flight = Some(after.clone());
        let renamed = self.db.rename_table(&name, &to);
        // A rename is no concern of a session's transaction.
        if self.unless_busy(renamed, &name, self.is_used_by_prepared(no))?.is_some() {
            self.note_vacated(name, no);
            // Older snapshots would take the name for another table's.
            if let Some((since, earlier)) = self.vacated.get(&to)
                && *earlier != no
            {
                let defined = self.defined.entry(no).or_default();
                *defined = (*defined).max(*since);
            }
            self.defined(after)?;
        }
        Ok(())
    }

    pub fn add_or_drop_index(&mut self, name: String, no: TableNo) -> Step {
        let mut after = self.model.clone();
        if !after.indexed.remove(&no) {
            after.indexed.insert(no);
        }
        self.in_flight = Some(after.clone());
        let changed = self.change_indexes(&name, after.indexed.contains(&no));
        let is_busy = self.is_used_by_prepared(no) || self.is_used_by_session(no);
        let Some(changed) = self.unless_busy(changed, &name, is_busy)? else { return Ok(()) };
        match changed {
            Some(table) => {
                self.handles.insert(no, table);
                self.commits += 1;
            }
            None => after = self.model.clone(),
        }
        self.defined(after)?;
        let found = self.must(self.try_on_disk(&self.model))?;
        assert_eq!(found.indexed, self.model.indexed, "seed {}", self.seed);
        Ok(())
    }

    /// The same rows in another file.
    pub fn rebuild_table(&mut self, name: String, no: TableNo) -> Step {
        self.in_flight = Some(self.model.clone());
        let rebuilt = self.rebuild(&name, self.model.indexed.contains(&no));
        trace!("rebuild of {name}: {:?}", rebuilt.as_ref().map(Option::is_some));
        let is_busy = self.is_used_by_prepared(no) || self.is_used_by_session(no);
        if let Some(Some(table)) = self.unless_busy(rebuilt, &name, is_busy)? {
            self.handles.insert(no, table);
            self.note_definition(no);
        }
        self.in_flight = None;
        Ok(())
    }

    /// None if it was given up half-way.
    fn rebuild(&mut self, name: &str, indexed: bool) -> Result<Option<Arc<Table>>, Error> {
        let def = self.db.table_def(name)?;
        let mut change = self.db.rebuild_table(name, &def)?;
        change.set_sort_memory(self.random.random_range(100..5000));
        let in_order = self.random.random::<bool>();
        while let Some((key, value)) = change.next_row()? {
            let (key, value) = (key.to_vec(), value.to_vec());
            match in_order {
                true => change.push_row(&key, &value)?,
                false => change.add(0, &key, &value)?,
            }
            if indexed {
                change.add(1, &second_key(&key), b"rebuilt")?;
            }
            if self.random.random_ratio(1, 50) {
                self.db.step_cleaner()?;
                self.db.step_checkpoint()?;
            }
        }
        if self.random.random_ratio(1, 6) {
            drop(change);
            return if self.is_over() { Err(Error::Interrupted) } else { Ok(None) };
        }
        change.build(&mut || true)?;
        while self.random.random_bool(0.5) {
            self.db.step_cleaner()?;
        }
        change.commit(&[]).map(Some)
    }

    pub fn truncate_table(&mut self, name: String, no: TableNo) -> Step {
        let mut after = self.model.clone();
        after.rows.remove(&no);
        if after.indexed.remove(&no) {
            after.indexed.insert(self.next_table);
        }
        after.rows.insert(self.next_table, Rows::new());
        after.names.insert(name.clone(), self.next_table);
        self.in_flight = Some(after.clone());
        let truncated = self.db.truncate_table(&name);
        let is_busy = self.is_used_by_prepared(no) || self.is_used_by_session(no);
        if let Some(table) = self.unless_busy(truncated, &name, is_busy)? {
            self.handles.insert(self.next_table, table);
            self.note_definition(self.next_table);
            self.next_table += 1;
            self.handles.remove(&no);
            self.defined(after)?;
        }
        Ok(())
    }

    /// What a definition gave; `None` if it was refused because the table is busy, or met a failing
    /// disk and left all as it was.
    pub fn unless_busy<T>(
        &mut self,
        result: Result<T, Error>,
        name: &str,
        is_busy: bool,
    ) -> Step<Option<T>> {
        if is_busy && !self.is_over() {
            let refusal = Error::TableBusy(name.to_owned());
            assert_eq!(result.err(), Some(refusal), "seed {}", self.seed);
            self.in_flight = None;
            return Ok(None);
        }
        if self.is_disk_error(&result) {
            self.in_flight = None;
            return Ok(None);
        }
        self.must(result).map(Some)
    }

    pub fn is_used_by_session(&self, no: TableNo) -> bool {
        self.sessions.iter().any(|session| session.used.contains(&no))
    }

    pub fn is_used_by_prepared(&self, no: TableNo) -> bool {
        // Of one of an earlier life it is known what it has written, not what it has read.
        let has_written = |(xid, writes): (&Vec<u8>, &Writes)| {
            !self.detached.contains_key(xid) && writes.keys().any(|(table, _)| *table == no)
        };
        self.detached.values().any(|used| used.contains(&no))
            || self.model.prepared.iter().any(has_written)
    }

    /// Adds or drops the second index; none if it was given up half-way.
    pub fn change_indexes(
        &mut self,
        name: &str,
        indexed: bool,
    ) -> Result<Option<Arc<Table>>, Error> {
        let kept = ChangedIndex { def: IndexDef::unique("primary"), from: Some(0) };
        let new = ChangedIndex { def: IndexDef::non_unique("second"), from: None };
        let indexes = if indexed { vec![kept, new] } else { vec![kept] };
        let mut change = self.db.change_indexes(&self.db.open_table(name)?, &indexes)?;
        trace!("second index of {name}: {indexed}");
        change.set_sort_memory(self.random.random_range(100..5000));
        while let Some((key, _)) = change.next_row()? {
            if !indexed {
                break;
            }
            let key = second_key(key);
            change.add(1, &key, b"built")?;
        }
        let given_up = self.random.random_ratio(1, 6);
        let mut turns = self.random.random_range(0..3);
        let built = change.build(&mut || {
            turns -= 1;
            !given_up || turns >= 0
        });
        if given_up && !self.is_over() {
            drop(change);
            return if self.is_over() { Err(Error::Interrupted) } else { Ok(None) };
        }
        built?;
        while self.random.random_bool(0.5) {
            self.db.step_cleaner()?;
        }
        change.commit(&[]).map(Some)
    }

    /// Older snapshots don't know the table any more.
    pub fn note_definition(&mut self, no: TableNo) {
        self.commits += 1;
        self.defined.insert(no, self.commits);
    }

    fn note_vacated(&mut self, name: String, no: TableNo) {
        self.commits += 1;
        self.vacated.insert(name, (self.commits, no));
    }

    pub fn defined(&mut self, after: Model) -> Step {
        self.model = after;
        self.in_flight = None;
        Ok(())
    }
}
