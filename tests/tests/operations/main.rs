//! What administrators do: backups, dumps, encryption, packages, other versions; real clients.

mod backup;
mod clients;
mod dump;
mod encryption;
mod export;
mod newer_servers;
mod package;
