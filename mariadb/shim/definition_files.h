/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  The server's files of a table, and their images in the engine's catalog.

      definition_files.cc    which images a statement leaves, and how a file is read and written
  definition_restore.cc  files that a power cut took are written again

  The server describes a table in a .frm file, and the partitions of one in a .par file beside it.
  It does not make the names of these files durable: a power cut soon after an acknowledged
  statement takes the file, or brings the one of before back. So the catalog keeps an image of both
  as attachments (bridge.h), and each change of a definition sets them in its own catalog commit.

  They are kept under the name of the server's table. That is the engine's table, or what its
  partitions ("db/t#P#p0") have in common ("db/t"). The engine moves and removes the attachments of
  a table that it renames and drops; those of a partitioned table are moved with its last partition,
  and removed with it.
*/
#ifndef TIDEPOOL_DEFINITION_FILES_H
#define TIDEPOOL_DEFINITION_FILES_H

#include "bridge.h"
#include "server.h"
#include <list>
#include <string>
#include <vector>

namespace tidepool {

/* What is attached to a table. Never reused. A statement that changes partitions goes on or back
   after a crash as the server's own log says, so the images to come are there before that log
   speaks of them, and the images of before stay until the next such statement. */
enum Attachment_kind : uint8_t {
  FRM_IMAGE = 1,
  PAR_IMAGE = 2,
  DESCRIPTION = 3, /* description.h */
  FORMER_FRM_IMAGE = 4,
  FORMER_PAR_IMAGE = 5,
  COMING_FRM_IMAGE = 6,
  COMING_PAR_IMAGE = 7,
  DATABASE_OPTIONS = 8 /* of a database; see options_name() */
};
/* All kinds that go with the server's table. Not the options of a database. */
constexpr Attachment_kind ATTACHMENT_KINDS[] = {
    FRM_IMAGE,        PAR_IMAGE,        DESCRIPTION,     FORMER_FRM_IMAGE,
    FORMER_PAR_IMAGE, COMING_FRM_IMAGE, COMING_PAR_IMAGE};

constexpr char PARTITION_SEPARATOR[] = "#P#";
constexpr char PAR_EXTENSION[] = ".par";
/* All triggers of a table; the table that a trigger is of. */
constexpr char TRIGGERS_EXTENSION[] = ".TRG", TRIGGER_EXTENSION[] = ".TRN";
/* The file of a database's default character set and comment. */
constexpr char OPTIONS_FILE[] = "db.opt";

/* What the options of a database are attached to: no table has such a name. */
inline std::string options_name(const std::string &database) { return database + "/"; }

/* "db/t#P#p0" → "db/t", the table as the server knows it. */
std::string server_table_of(const std::string &name);
inline bool is_partition(const std::string &name) {
  return name.find(PARTITION_SEPARATOR) != std::string::npos;
}

/* Attachments as a change of a definition leaves them. */
class Attachments {
public:
  void set(const std::string &name, Attachment_kind kind, std::string bytes);
  void remove_all(const std::string &name);
  /* The images to come take the place of the present ones, which stay as the former ones. false:
     there are none. */
  bool set_from_coming(const std::string &table);
  /* As the engine takes them: good until the next change of this object. */
  const tp_attachment_changes *get();

  /* What each kind of change leaves. `name` is the engine's name of the table or partition. */
  static Attachments of_create(const std::string &name, const TABLE *form);
  static Attachments of_drop(const std::string &name);
  static Attachments of_rename(const std::string &from, const std::string &to);
  /* Of all partitions of a table together. */
  static Attachments of_drop_all(const std::string &table);
  static Attachments of_drop_database(const std::string &database);
  static Attachments of_rename_all(const std::string &from, const std::string &to);
  /* Of an ALTER in place, for the table or for any of its partitions. */
  static Attachments of_alter(const std::string &name, const TABLE *altered);

private:
  struct One {
    std::string name, bytes;
    Attachment_kind kind;
    bool is_removed;
  };
  void set_from_files(const std::string &table);
  void set_options_of_database(const std::string &name);
  void set_from_statement(const std::string &table);
  void move_all(const std::string &from, const std::string &to);

  std::list<One> all;
  std::vector<tp_attachment_change> changes;
  tp_attachment_changes given{};
};

/* The image that the catalog has. A TP_* code. */
int attachment(const std::string &name, Attachment_kind kind, std::string *bytes);

/* Reads a file as a whole. false: it is missing, or can't be read. */
bool read_file(const std::string &path, std::string *bytes);
/* Called when the server has written, or renamed, the files of a partitioned table. A statement
   that changes partitions writes files
   to come under another name, before its log relies on them, and puts them in their place later. 0,
   or 1 if they can't be kept. */
int keep_partitioned_files(const char *path, const char *old_path, chf_create_flags what);
/* Whether these bytes are a whole .frm file of a table. */
bool is_frm_image(const std::string &bytes);
/* What a .frm file says beside its columns, by the server's number for it; empty: nothing. */
std::string frm_property(const std::string &frm, uchar which);
/* The id that the server gives to each definition; empty: there is none. */
std::string definition_id(const std::string &frm);
/* Whether the image of a table (or of what a partition is of) has this id. */
bool has_definition(const std::string &name, const LEX_CUSTRING &id);
/* The names of the partitions, as they are in names of the engine's tables. false: these bytes are
   no whole .par file. */
bool partition_names(const std::string &par, std::vector<std::string> *names);
/* Whether these bytes are a whole .par file. */
bool is_par_image(const std::string &bytes);

/* Before the server clears up after a crash, for which it needs them: files of partitioned tables
   that are missing, or not whole. */
void restore_partitioned_files();
/* When the server has cleared up after a crash: files that are missing, or that a power cut left as
   they were before. */
void restore_definitions();
/* Writes the .par file of a table again, if there is none. */
void restore_par_file(const std::string &table);

} // namespace tidepool

#endif
