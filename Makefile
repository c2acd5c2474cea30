# Every target installs by itself what it needs (scripts/deps).
.PHONY: help run start stop build package test bench lint fmt clean
.DEFAULT_GOAL := help

help:   ## this list
	@sed -nE 's/^([a-z]+): *##/  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

run:    ## a private MariaDB server on Tidepool in the foreground; TIDEPOOL_OPTS="--…" adds server options
	@scripts/build-plugin
	@exec scripts/server run

start:  ## the same in the background
	@scripts/build-plugin
	@scripts/server start

stop:   ## stops it
	@scripts/server stop

build:  ## builds target/release/ha_tidepool.so
	@scripts/build-plugin

package: ## Debian packages of the plugin and of the command, in target/debian
	@scripts/package

test:   ## everything that CI runs
	@scripts/test

bench:  ## speed against InnoDB in the same server binary
	@scripts/bench

lint:   ## formatting, lints, documentation, licences, shell scripts
	@scripts/lint

fmt:    ## formats the sources
	@cargo fmt --all
	@clang-format -i mariadb/shim/*.cc mariadb/shim/*.h

clean:  ## removes what was built; the data under var/data stays
	@cargo clean
	@rm -rf var/test var/bench
