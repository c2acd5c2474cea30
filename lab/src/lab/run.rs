//! A run: a server from its start to its end, under load, and what was measured of it.

use std::time::Instant;

use super::{Lab, Moment, Plan, Stage};
use crate::error::Result;
use crate::govern::Governing;
use crate::load::sysbench::Sysbench;
use crate::load::tables;
use crate::machine::cgroup::Cgroup;
use crate::progress::Progress;
use crate::record::{Outcome, Record};
use crate::sample::Sampler;
use crate::server::{Server, ServerOptions};

impl Lab {
    /// Runs a server under load as planned. A server that dies is a result, not an error.
    ///
    /// `each` is called at every [`Moment`] of the run.
    ///
    /// # Errors
    /// If the run could not begin, or `each` fails.
    pub fn run(
        &self,
        plan: &Plan,
        progress: &mut Progress,
        each: impl FnMut(&mut Stage, Moment) -> Result<()>,
    ) -> Result<Record> {
        let memory = plan.memory_limit.map(|limit| self.memory_cgroup(limit)).transpose()?;
        self.run_in(memory.as_ref(), plan, progress, each)
    }

    /// The same in a memory cgroup that others may be in as well.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_in(
        &self,
        memory: Option<&Cgroup>,
        plan: &Plan,
        progress: &mut Progress,
        mut each: impl FnMut(&mut Stage, Moment) -> Result<()>,
    ) -> Result<Record> {
        progress.say(&format!("{} {}: {}", plan.experiment, plan.label(), plan.scenario));
        let _lock = tables::lock(&plan.data_dir)?;
        let reads = plan.reads_per_second.map(|limit| self.read_throttle(limit)).transpose()?;
        let groups = [memory, reads.as_ref()];
        let options = ServerOptions {
            engine: plan.engine,
            data_dir: plan.data_dir.clone(),
            args: plan.server_args(),
            cgroup_procs: groups.into_iter().flatten().map(Cgroup::procs).collect(),
        };
        let mut record = plan.record(&self.settings);
        let mut server = match self.start(options, memory, &mut record)? {
            Some(server) => server,
            None => return Ok(record),
        };
        if let Some(statement) = &plan.first_statement {
            server.execute(statement)?;
        }
        let governing =
            plan.governed.then(|| Governing::start(&server, server.dir())).transpose()?;
        let mut sampler = Sampler::new(&server, memory);
        let mut stage = Stage::new(&mut server, memory, governing);
        drive(plan, &mut stage, &mut sampler, &mut record, progress, &mut each)?;
        stage.stop_neighbour();
        if record.outcome == Outcome::Finished {
            each(&mut stage, Moment::End)?;
        }
        let governing = stage.governing.take();
        stage.finish(&mut record);
        if let Some(governing) = governing {
            self.end_governing(governing, &mut record)?;
        }
        let status = sampler.pool_status();
        drop(sampler);
        if let Some(wait) = status.resize_longest_wait_us {
            record.summary.insert("resize_longest_wait_us".into(), wait as f64);
        }
        if let Some(group) = memory {
            record.summary.insert("oom_kills".into(), group.memory_use().oom_kills as f64);
        }
        if plan.keeps_clean && record.outcome == Outcome::Finished && server.is_running() {
            stop(server, memory, &mut record)?;
        }
        Ok(record)
    }

    /// Starts the server of a run; `None` if it did not start, which the record says.
    fn start(
        &self,
        options: ServerOptions,
        memory: Option<&Cgroup>,
        record: &mut Record,
    ) -> Result<Option<Server>> {
        let starting = Instant::now();
        let server = match Server::start(&self.environment, options) {
            Ok(server) => server,
            Err(error) if memory.is_some_and(|group| group.memory_use().oom_kills > 0) => {
                tracing::info!("killed while starting: {error}");
                record.outcome = Outcome::OomKilled;
                return Ok(None);
            }
            Err(error) => {
                tracing::warn!("{error}");
                record.outcome = Outcome::Failed("the server did not start".into());
                return Ok(None);
            }
        };
        record.summary.insert("start_s".into(), starting.elapsed().as_secs_f64());
        record.server_version = server.value("SELECT VERSION()")?.unwrap_or_default();
        Ok(Some(server))
    }

    /// Ends `tidepool govern`, and keeps its log and what its steps cost.
    fn end_governing(&self, mut governing: Governing, record: &mut Record) -> Result<()> {
        let steps = governing.steps();
        record.summary.insert("steps".into(), steps.count as f64);
        record.summary.insert("step_lost_ms_max".into(), steps.lost_ms_max as f64);
        record.summary.insert("step_took_ms_max".into(), steps.took_ms_max as f64);
        if record.outcome == Outcome::Finished && !governing.is_running() {
            record.outcome = Outcome::Failed("tidepool govern has ended".into());
        }
        self.output.log(&record.file_name(), &governing.text())
    }
}

/// Stops the server in order.
fn stop(server: Server, memory: Option<&Cgroup>, record: &mut Record) -> Result<()> {
    match server.stop() {
        // A server with a pool that is too large may get through its load and be killed when it
        // writes its pages.
        Err(_) if memory.is_some_and(|group| group.memory_use().oom_kills > 0) => {
            record.outcome = Outcome::OomKilled;
            Ok(())
        }
        stopped => stopped.map(drop),
    }
}

/// Puts the load on, and takes a point a second until the plan's end, or the server's, or `each`
/// ends it.
fn drive(
    plan: &Plan,
    stage: &mut Stage,
    sampler: &mut Sampler,
    record: &mut Record,
    progress: &mut Progress,
    each: &mut impl FnMut(&mut Stage, Moment) -> Result<()>,
) -> Result<()> {
    let mut load = Sysbench::start(stage.server.socket(), &plan.job)?;
    let warm_up = i64::from(plan.warm_up_s);
    for at_s in 1 - warm_up..=i64::from(plan.measure_s) {
        if at_s == 1 {
            each(stage, Moment::After(0)).or_else(|error| stage.unless_dead(error))?;
        }
        if let Some(job) = stage.next_job.take() {
            drop(load);
            load = Sysbench::start(stage.server.socket(), &job)?;
        }
        let second = match load.next_second() {
            Ok(second) => second,
            Err(silence) => {
                record.outcome = stage.why_silent(silence);
                break;
            }
        };
        stage.point = sampler.point(at_s as f64, &second, stage.neighbour_bytes());
        record.series.push(stage.point);
        if let Ok(measured) = u32::try_from(at_s)
            && measured > 0
        {
            each(stage, Moment::After(measured)).or_else(|error| stage.unless_dead(error))?;
        }
        progress.second();
        if stage.is_over {
            break;
        }
    }
    Ok(())
}
