/* Copyright (c) 2026, the Tidepool authors. SPDX-License-Identifier: GPL-2.0-only */
/* What a FULLTEXT index that is made now is made with: by the variables of the session. */
#ifndef TIDEPOOL_FULLTEXT_STOPWORDS_H
#define TIDEPOOL_FULLTEXT_STOPWORDS_H

#include "fulltext_index.h"

namespace tidepool {

/* false: an error was sent. */
bool fulltext_settings_of_session(THD *thd, const Fulltext_index &index,
                                  Fulltext_settings *settings);

} // namespace tidepool

#endif
