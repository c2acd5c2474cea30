//! Packed files beside a model, on the simulated disk: batches, frees, cleaning, checkpoints and
//! restarts in random order, with crashes and full disks.

mod access;
mod crash;
mod damage;
mod faults;
mod impossible;
mod model;
mod rescue;
mod room;
mod sealing;
mod sectors;
mod threads;
