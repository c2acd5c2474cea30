/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
#include "named_path.h"
#include "sql_acl.h"
#include "sql_parse.h"
#include "sysvars.h"
#include <memory>

namespace tidepool {

namespace {

/* An existing path with all links and '..' resolved; empty if there is none. */
std::string real_path(const std::string &path) {
  const std::unique_ptr<char, void (*)(void *)> real(realpath(path.c_str(), nullptr), free);
  return real ? std::string(real.get()) : std::string();
}

bool is_in(const std::string &path, const std::string &dir) {
  if (path.compare(0, dir.size(), dir) != 0) return false;
  return path.size() == dir.size() || path[dir.size()] == '/';
}

} // namespace

bool leads_outside(const char *named, std::string *real, std::string *why) {
  std::string path(named);
  const auto quoted = [&](const char *text) {
    *why = "'" + path + "' " + text;
    return false;
  };
  if (path.empty() || path[0] != '/') return quoted("is no absolute path");
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  *real = real_path(path);
  if (real->empty()) {
    /* What does not exist yet will be in its directory. */
    const size_t slash = path.rfind('/');
    const std::string last = path.substr(slash + 1);
    const std::string parent = real_path(slash ? path.substr(0, slash) : "/");
    if (parent.empty() || last.empty() || last == "." || last == "..")
      return quoted("is in no directory that exists and can be read");
    *real = (parent == "/" ? "" : parent) + "/" + last;
  }
  if (real->size() >= FN_REFLEN - FN_LEN) return quoted("is too long");
  for (const char *dir : {static_cast<const char *>(mysql_real_data_home), data_home_dir()}) {
    const std::string own = real_path(dir);
    /* What can't be resolved can't be compared. */
    if (own.empty())
      return quoted("can't be compared with the server's data directory, which can't be read");
    if (is_in(*real, own)) return quoted("is in the server's data directory");
  }
  return true;
}

bool may_use_path(THD *thd, const char *variable, const char *path, std::string *real) {
  if (check_global_access(thd, FILE_ACL)) return false;
  std::string why;
  if (!leads_outside(path, real, &why)) {
    my_printf_error(ER_WRONG_ARGUMENTS, "%s: %s", MYF(0), variable, why.c_str());
    return false;
  }
  char checked[FN_REFLEN];
  strmake(checked, real->c_str(), sizeof checked - 1);
  if (!is_secure_file_path(checked)) {
    my_error(ER_OPTION_PREVENTS_STATEMENT, MYF(0), "--secure-file-priv");
    return false;
  }
  return true;
}

} // namespace tidepool
