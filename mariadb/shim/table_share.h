/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  What all open handlers of a table share: the engine's table, how keys and rows are laid out, and
  statistics.

  Trees: tree 0 is the clustered index; the server's other keys follow in the order that they had
  when the trees were made. A .frm file may have them in another order since, for the server sorts
  them again when partitions are added or dropped, and EXCHANGE PARTITION compares keys by their
  names alone; the engine is asked neither time. So a tree is found by its key's name, which the
  engine's catalog has.

  Metadata of a table in the engine's catalog: format of keys (1 byte) | format of rows (1 byte) |
  fingerprint of the row (8 bytes) then, if the second highest bit of the first byte is set, what
  FULLTEXT indexes were made with: length of what follows (4) | format (1) | number of indexes (2) |
  per index: tree (2), settings (fulltext_index.cc) (the bit 0x20 says that the table has SPATIAL
  indexes, with cells as mariadb/src/spatial makes them; nothing follows because of it) and, if the
  format of rows is 2, the list of their versions (row_versions.h); 1 = all rows are of version 0.
  Behind that, if the highest bit of the first byte is set, are foreign keys (foreign_key.h).
*/
#ifndef TIDEPOOL_TABLE_SHARE_H
#define TIDEPOOL_TABLE_SHARE_H

#include "bridge.h"
#include "key_codec.h"
#include "row_codec.h"
#include "server.h"
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace tidepool {

/* Of the file of an exported table, in the directory of its database. */
constexpr char EXPORT_EXT[] = ".tpx";

/* "./db/table" → "db/table"; a temporary table's path → "#tmp/<start of the server>-<file name>":
   the server numbers the files anew in each of its lives, and a prepared transaction may have kept
   a table of an earlier one. */
std::string table_name_of(const char *path);
constexpr char TEMPORARY_PREFIX[] = "#tmp/";

/* What the FULLTEXT indexes of a table were made with, by tree. */
using Fulltext_settings_of = std::map<uint, Fulltext_settings>;

/* The layouts of a table as the server describes it. */
struct Layouts {
  explicit Layouts(const TABLE *table) : Layouts(table->s, table->key_info) {}
  /* `order` has the key of each tree, MAX_KEY for row ids. Without it they are in the server's
     order. */
  Layouts(const TABLE_SHARE *share, const KEY *keys, std::vector<uint> order = {});
  /* Those of the engine's table of this name, in the order of its trees. That they are the right
     ones is for the fingerprint to tell. */
  static int of_trees(const TABLE_SHARE *share, const KEY *keys, const std::string &name,
                      std::unique_ptr<Layouts> *layouts);

  std::vector<Index_layout> trees; /* [0] = clustered */
  std::vector<uint> secondary;     /* the other trees in the order of the server's keys */
  std::unique_ptr<Row_layout> row;
  bool has_row_id = false;
  bool has_secondary_unique = false;
  bool has_spatial = false;
  uint primary_key = MAX_KEY;

  uint tree_of(uint keynr) const { return tree_of_key[keynr]; }
  uint key_of(uint tree) const { return key_of_tree[tree]; }
  uint64 fingerprint() const;
  /* Gives FULLTEXT indexes what they were made with. false: of one it is not known. */
  bool set_fulltext(const Fulltext_settings_of &settings);
  /* Whether rows and entries of the other are rows and entries of this one. */
  bool same(const Layouts &other) const;
  /* Those of trees of these names, in their order; null if the keys have other names. */
  static std::unique_ptr<Layouts> by_names(const TABLE_SHARE *share, const KEY *keys,
                                           const std::vector<std::string> &names);
  /* The trees as the engine gets them, with the names that their keys have in `table`, whose
     layouts these are. */
  std::vector<tp_index_def> definitions(const TABLE *table) const;

private:
  std::vector<uint> tree_of_key, key_of_tree;
};

/* Whether the server will take another key for the primary one, or one where there is none, when it
   sorts the keys again. It does so when partitions come or go, and then the engine's trees can't
   follow: the rows stay in the tree that they are in. Only tables without a PRIMARY KEY can come to
   this, by ALTER TABLE, which leaves the keys in their order. */
bool has_passing_primary_key(const TABLE_SHARE *share, const KEY *keys);

struct Metadata {
  static constexpr size_t SIZE = 10; /* without versions */
  /* In the first byte. */
  static constexpr uchar HAS_FOREIGN_KEYS = 0x80, HAS_FULLTEXT = 0x40, HAS_SPATIAL = 0x20;
  uint64 fingerprint = 0;
  bool has_spatial = false;
  Fulltext_settings_of fulltext;
  Row_versions versions;
  std::string put() const;
  /* false: of a format that this version doesn't know. */
  bool get(const uchar *from, size_t len);
};

/* A table's metadata as the engine has them now. */
int table_metadata(const std::string &name, std::string *bytes);

/* Rows with equal values in the first n parts of an index. */
struct Cardinality {
  std::vector<double> rows_per_key;
};

struct Free_spatial_statistics {
  void operator()(tp_spatial_statistics *statistics) const {
    tp_spatial_statistics_free(statistics);
  }
};
using Spatial_statistics = std::unique_ptr<tp_spatial_statistics, Free_spatial_statistics>;

/* Of a FULLTEXT index: how many rows have pending words (fulltext_merge.h). */
struct Pending_state {
  std::atomic<uint> writes{0};
  std::atomic<bool> is_full{false}; /* when it was looked at last */
};

/* Of a table: merges of pending words. */
struct Merge_state {
  std::atomic<bool> is_asked{false};
  std::mutex merging; /* held while one is under way, and while there may be none */
  uint pauses = 0;    /* protected by the mutex of the thread that merges */
  /* Of that thread: how many merges have failed since one succeeded, and why the last did. */
  uint failures = 0;
  int failure = TP_OK;
};

class Table_share : public Handler_share {
public:
  /* Opens the engine's table. On failure `table` is null and *error an HA_ERR_* code. */
  Table_share(const TABLE *form, const char *path, int *error);
  ~Table_share() override;

  tp_table *table = nullptr;
  std::string name;
  Layouts layouts;
  Metadata metadata;
  /* Goes on when the table was truncated: handlers then open their readers anew. */
  std::atomic<uint> generation{0};

  int reopen();
  /* The same where the trees and the metadata may be others, too: by somebody who is alone with
     the table. An HA_ERR_* code. */
  int reload(const TABLE *form);

  /* Tables of CREATE TEMPORARY TABLE. */
  bool is_temporary() const;

  std::mutex auto_increment_mutex;

private:
  /* Finds out how the open table is laid out. An HA_ERR_* code. */
  int read_definition(const TABLE *form);

public:
  std::unique_ptr<Pending_state[]> pending; /* by tree */
  Merge_state merge;

  /* Statistics: sampled when the table is first used, by ANALYZE, and when it has changed much
     since. Every statement reads the sizes, so these are no part of what the mutex protects. */
  std::atomic<bool> statistics_known{false};
  std::atomic<uint64> rows_when_sampled{0};
  std::atomic<uint64> clustered_size{0}, secondary_size{0}; /* leaf pages, in bytes */
  std::mutex statistics_mutex;
  std::vector<Cardinality> cardinalities; /* by tree */
  /* By tree: of SPATIAL indexes, where their entries are. */
  std::vector<Spatial_statistics> spatial;
};

} // namespace tidepool

#endif
