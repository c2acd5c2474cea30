# Compiles mariadb/shim/*.cc and links them with the Rust bridge into ha_tidepool.so.
# Called by scripts/build-plugin, which sets INCLUDES and LIBSERVICES (see scripts/deps) in the environment.

ROOT     := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))/..)
SHIM     := $(ROOT)/mariadb/shim
RELEASE  := $(ROOT)/target/release
OBJECTS  := $(ROOT)/target/shim
PLUGIN   := $(RELEASE)/ha_tidepool.so
BRIDGE   := $(RELEASE)/libha_tidepool.a
EXPORTS  := $(ROOT)/mariadb/exports.map

SOURCES  := $(wildcard $(SHIM)/*.cc)
OBJS     := $(SOURCES:$(SHIM)/%.cc=$(OBJECTS)/%.o)

# The server's headers are system headers to us: warnings are asked for our own lines only. (GCC 15 believes that sums of lengths
# are negative numbers.)
CXXFLAGS ?= -O2 -g
SHIM_FLAGS := -std=gnu++17 -fPIC -Wall -Wextra -Wno-unused-parameter -Wno-alloc-size-larger-than \
  -fno-semantic-interposition -DMYSQL_DYNAMIC_PLUGIN -DDBUG_OFF -DNDEBUG -DHAVE_CONFIG_H \
  -I$(SHIM) $(subst -I,-isystem ,$(INCLUDES)) -MMD -MP

$(PLUGIN): $(OBJS) $(BRIDGE) $(EXPORTS) $(LIBSERVICES)
	g++ -shared -Wl,-Bsymbolic -Wl,--gc-sections -Wl,--version-script=$(EXPORTS) -o $@.new \
	  $(OBJS) $(BRIDGE) $(LIBSERVICES) -lpthread -ldl -lm
	mv $@.new $@

# The environment file changes when another version of the server is unpacked: everything is compiled again.
$(OBJECTS)/%.o: $(SHIM)/%.cc $(ROOT)/mariadb/shim.mk $(ROOT)/var/mariadb.env | $(OBJECTS)
	g++ $(CXXFLAGS) $(SHIM_FLAGS) -c $< -o $@

$(OBJECTS):
	mkdir -p $@

-include $(OBJS:.o=.d)
