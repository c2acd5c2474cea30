//! Atomic read-modify-writes of the plugin in one statement, and the cache lines that they are on,
//! found by stepping through the session's thread with ptrace, one instruction after the other.
//!
//! A line that two sessions write in the same statement is shared: on a machine with many cores it
//! moves from core to core with each statement, whatever the sessions work on. Nothing here is
//! timed, so two cores are enough to count for a hundred.
//!
//! Only locked instructions of the plugin are looked at. Ordinary stores say little: the server
//! passes a table's handler from session to session. What the server and the C library write is the
//! same for every engine.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register,
    UsedMemory,
};
use mysql::Conn;
use mysql::prelude::Queryable;
use nix::libc::user_regs_struct;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

const LINE_BYTES: u64 = 64;
const LONGEST_INSTRUCTION_BYTES: usize = 15;
const PLUGIN: &str = "ha_tidepool.so";

/// An instruction that reads and writes a cache line as one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Locked {
    /// The line's number: its address by 64.
    pub line: u64,
    /// Where the instruction lies in the plugin's file: `addr2line -fie ha_tidepool.so` names the
    /// function of this address.
    pub instruction: u64,
}

/// Locked instructions, and how often each was executed.
pub type Counts = BTreeMap<Locked, usize>;

/// The plugin's instructions in a server's memory.
struct Text {
    memory: File,
    /// Addresses, and the file's address that the first one is of.
    mapped: Vec<(Range<u64>, u64)>,
    /// The memory that instructions write which have been met, if they are locked.
    known: HashMap<u64, Option<UsedMemory>>,
    infos: InstructionInfoFactory,
}

impl Text {
    fn of(pid: u32) -> Text {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let of_plugin: Vec<Vec<&str>> = maps
            .lines()
            .map(|line| line.split_whitespace().collect())
            .filter(|fields: &Vec<&str>| fields.last().is_some_and(|file| file.ends_with(PLUGIN)))
            .collect();
        let range = |fields: &[&str]| {
            let (from, to) = fields[0].split_once('-').unwrap();
            u64::from_str_radix(from, 16).unwrap()..u64::from_str_radix(to, 16).unwrap()
        };
        let base = range(of_plugin.first().expect("the server has the plugin")).start;
        let text = of_plugin.iter().filter(|fields| fields[1].contains('x'));
        Text {
            memory: File::open(format!("/proc/{pid}/mem")).unwrap(),
            mapped: text
                .map(|fields| range(fields))
                .map(|at| (at.clone(), at.start - base))
                .collect(),
            known: HashMap::new(),
            infos: InstructionInfoFactory::new(),
        }
    }

    fn address_in_file(&self, rip: u64) -> Option<u64> {
        let (range, at) = self.mapped.iter().find(|(range, _)| range.contains(&rip))?;
        Some(at + rip - range.start)
    }

    /// Counts the next instruction if it is locked.
    fn count_next(&mut self, registers: &user_regs_struct, counts: &mut Counts) {
        let Some(instruction) = self.address_in_file(registers.rip) else { return };
        let (memory, infos) = (&self.memory, &mut self.infos);
        let locked = self.known.entry(registers.rip).or_insert_with(|| {
            let mut bytes = [0; LONGEST_INSTRUCTION_BYTES];
            memory.read_exact_at(&mut bytes, registers.rip).expect("mapped text");
            let mut decoder = Decoder::with_ip(64, &bytes, registers.rip, DecoderOptions::NONE);
            locked_memory(&decoder.decode(), infos)
        });
        let Some(used) = locked else { return };
        let value = |register, _, _| value_of(registers, register);
        let address = used.virtual_address(0, value).expect("of general registers");
        let line = address / LINE_BYTES;
        *counts.entry(Locked { line, instruction }).or_default() += 1;
    }
}

/// The memory that an instruction writes, if it reads and writes it as one step.
fn locked_memory(
    instruction: &Instruction,
    infos: &mut InstructionInfoFactory,
) -> Option<UsedMemory> {
    // An exchange with memory is locked without a prefix.
    let is_locked = instruction.has_lock_prefix() || instruction.mnemonic() == Mnemonic::Xchg;
    let mut used = infos.info(instruction).used_memory().iter();
    used.find(|used| {
        is_locked && matches!(used.access(), OpAccess::ReadWrite | OpAccess::ReadCondWrite)
    })
    .copied()
}

fn value_of(registers: &user_regs_struct, register: Register) -> Option<u64> {
    Some(match register {
        Register::RAX => registers.rax,
        Register::RBX => registers.rbx,
        Register::RCX => registers.rcx,
        Register::RDX => registers.rdx,
        Register::RSI => registers.rsi,
        Register::RDI => registers.rdi,
        Register::RBP => registers.rbp,
        Register::RSP => registers.rsp,
        Register::R8 => registers.r8,
        Register::R9 => registers.r9,
        Register::R10 => registers.r10,
        Register::R11 => registers.r11,
        Register::R12 => registers.r12,
        Register::R13 => registers.r13,
        Register::R14 => registers.r14,
        Register::R15 => registers.r15,
        Register::RIP => registers.rip,
        Register::FS => registers.fs_base,
        Register::GS => registers.gs_base,
        Register::CS | Register::DS | Register::ES | Register::SS => 0,
        _ => return None,
    })
}

/// Runs a statement in a session whose thread is stepped through; gives what the plugin
/// executed.
///
/// # Panics
/// If the thread can't be traced, or the statement fails.
pub fn locked_in(pid: u32, conn: &mut Conn, statement: &str) -> Counts {
    let thread = "SELECT TID FROM information_schema.PROCESSLIST WHERE ID = CONNECTION_ID()";
    let thread: i32 = conn.query_first(thread).unwrap().expect("this session");
    let thread = Pid::from_raw(thread);
    let mut text = Text::of(pid);
    let mut counts = Counts::new();
    let is_traced = Barrier::new(2);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            is_traced.wait();
            let result = conn.query_drop(statement);
            // After the answer the thread still has to clean up, and then waits for the next
            // statement.
            while !is_asleep(thread) {
                std::thread::sleep(Duration::from_millis(1));
            }
            is_over.store(true, Ordering::Release);
            result.and_then(|()| conn.query_drop("DO 0"))
        });
        ptrace::seize(thread, ptrace::Options::empty())
            .expect("a process may trace its children: see kernel.yama.ptrace_scope");
        ptrace::interrupt(thread).expect("it is traced");
        await_stop(thread);
        is_traced.wait();
        loop {
            ptrace::step(thread, None).expect("it has stopped");
            await_stop(thread);
            if is_over.load(Ordering::Acquire) {
                break;
            }
            text.count_next(&ptrace::getregs(thread).expect("it has stopped"), &mut counts);
        }
        ptrace::detach(thread, None).expect("it has stopped");
        client.join().expect("it does not panic").expect(statement);
    });
    counts
}

fn await_stop(thread: Pid) {
    let stopped = waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it is traced");
    assert!(
        matches!(stopped, WaitStatus::PtraceEvent(..) | WaitStatus::Stopped(..)),
        "{stopped:?}"
    );
}

/// Whether the thread sleeps in a call.
fn is_asleep(thread: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).expect("it is there");
    stat.rsplit(") ").next().expect("its state").starts_with('S')
}
