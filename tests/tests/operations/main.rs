//! What an administrator does: backups, dumps, encryption, packages, other versions; and real clients.

mod backup;
mod clients;
mod dump;
mod encryption;
mod newer_servers;
mod package;
