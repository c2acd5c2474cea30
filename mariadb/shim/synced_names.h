/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  Names of the server's files that become durable with a statement, or with a clean shutdown.

  The server syncs no directory when it makes, renames or removes a file of triggers. The catalog
  has no images of these (definition_files.h), so a power cut would bring the ones of before back.
  The server changes them behind the engine's last call in a statement. So the engine takes part in
  the statement's transaction, and its commit syncs the directory before the client has the answer.
  (CREATE DATABASE calls no engine, and DROP DATABASE ends that transaction before it removes the
  directory.)

  After a clean shutdown a start compares no file with its image: one that differs was put there on
  purpose. So a clean shutdown syncs the directories of all definitions that changed before.

  Locks: the set of changed databases has its own mutex, and nothing else is locked under it.
*/
#ifndef TIDEPOOL_SYNCED_NAMES_H
#define TIDEPOOL_SYNCED_NAMES_H

#include "server.h"
#include <string>

namespace tidepool {

struct Session;

/* Makes names in a directory durable. */
bool sync_directory(const std::string &path);
/* The statement of this session syncs a directory before it is acknowledged. */
void sync_at_end_of_statement(THD *thd, const std::string &directory);
/* The same, if the table ("db/t", or a partition of it) has triggers, whose files the server is
   about to rename or remove. */
void sync_triggers_at_end(THD *thd, const std::string &table);
/* At commit and rollback. What fails is in the error log: the statement is done by then. */
void sync_names(Session *session);

/* The server changes the files of a table of this database, now or soon. */
void note_changed_names(const std::string &database);
/* At a clean shutdown: all that was noted. */
void sync_changed_names();

} // namespace tidepool

#endif
