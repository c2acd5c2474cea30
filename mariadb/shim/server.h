/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/*
  The server's headers, in the one order in which they compile, and nothing else.
*/
#ifndef TIDEPOOL_SERVER_H
#define TIDEPOOL_SERVER_H

#ifndef MYSQL_SERVER
#define MYSQL_SERVER 1
#endif
#include <my_global.h>
#include <m_ctype.h>
#include <mysql/plugin.h>
#include <mysqld_error.h>
#include "sql_class.h"
#include "rowid_filter.h"
#include "sql_priv.h"
#include "handler.h"
#include "table.h"
#include "field.h"
#include "key.h"
#include "log.h"
#include "mysqld.h"
#include "partition_info.h"
#include "sql_show.h"
#include "sql_table.h"
#include "transaction.h"

#endif
