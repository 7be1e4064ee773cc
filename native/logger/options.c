// SPDX-License-Identifier: Apache-2.0
/*
 * The command line is that of containerd's logging drivers: what is behind the "?" of
 * binary:///usr/bin/tsugiki-log?KEY=VALUE&... comes as pairs of arguments, in any order.
 */
#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_DIR   "/var/log/tsugiki"
#define DEFAULT_AGENT "/run/tsugiki/agent.sock"

/* What containerd takes for an identifier, pkg/identifiers: a part of a path that is
 * neither hidden nor leads out of the folder. */
static bool options_identifier(const char *id)
{
	size_t n = strlen(id);

	if (n == 0 || n > 76 || strchr("_.-", id[0]))
		return false;
	return strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") == n;
}

/* Reads a size as Docker does: decimal units, as in 10m or 1.5GB, without the fraction. */
static bool options_size(const char *text, off_t *size)
{
	static const char units[] = "bkmgt";
	const char *unit;
	char *end;
	long long n;

	errno = 0;
	n = strtoll(text, &end, 10);
	if (errno || end == text || n <= 0)
		return false;
	if (*end) {
		unit = strchr(units, *end | 0x20);
		if (!unit || !*unit)
			return false;
		for (; unit > units; unit--)
			if (__builtin_mul_overflow(n, 1000, &n))
				return false;
		end++;
		if ((*end | 0x20) == 'b' && (end[-1] | 0x20) != 'b')
			end++;
	}
	*size = n;
	return *end == 0;
}

static bool options_path(const char *text, char path[PATH_MAX])
{
	size_t n = strlen(text);

	if (text[0] != '/' || text[n - 1] == '/' || n >= PATH_MAX)
		return false;
	memcpy(path, text, n + 1);
	return true;
}

static bool options_set(struct options *o, const char *key, const char *value)
{
	if (strcmp(key, "path") == 0)
		return options_path(value, o->path);
	if (strcmp(key, "max-size") == 0)
		return options_size(value, &o->max_size);
	if (strcmp(key, "max-file") == 0) {
		char *end;
		long n = strtol(value, &end, 10);

		o->max_file = n > 0 && n <= 1000 ? (int)n : 0;
		return *end == 0 && o->max_file > 0;
	}
	if (strcmp(key, "compress") == 0) {
		o->compress = strcmp(value, "true") == 0;
		return o->compress || strcmp(value, "false") == 0;
	}
	if (strcmp(key, "agent") == 0) {
		o->agent[0] = 0;
		return strcmp(value, "none") == 0 || options_path(value, o->agent);
	}
	return false;
}

static const char usage[] = "path=/FILE, max-size=NUMBER[k|m|g], max-file=NUMBER, "
			    "compress=true|false, agent=/SOCKET|none";

/* What --help prints. tsugiki manpages makes the manual page of it. */
static const char help[] =
	"tsugiki-log - logging driver for containerd, which writes files as Docker's json-file\n"
	"\n"
	"Usage:\n"
	"  tsugiki-log KEY VALUE [KEY VALUE...]\n"
	"  tsugiki-log --help\n"
	"\n"
	"containerd starts tsugiki-log for a container whose log URI is binary:///PATH?KEY=VALUE.\n"
	"Descriptors 3 and 4 are what the container prints. The environment has CONTAINER_ID and\n"
	"CONTAINER_NAMESPACE. tsugiki-log reports bad options to syslog. The agent takes its CPU\n"
	"time from the container's quota.\n"
	"\n"
	"Options:\n"
	"  path=/FILE             the file (default " DEFAULT_DIR "/NAMESPACE/ID/ID-json.log)\n"
	"  max-size=NUMBER[k|m|g] begin the next file at so many bytes; k is 1000 (default never)\n"
	"  max-file=NUMBER        number of files, with the current one (default 1)\n"
	"  compress=true|false    compress older files with gzip (default false)\n"
	"  agent=/SOCKET|none     socket of the agent (default " DEFAULT_AGENT ")\n"
	"\n"
	"Example:\n"
	"  ctr run -d --log-uri 'binary:///usr/bin/tsugiki-log?max-size=10m&max-file=3' IMAGE "
	"web-1\n";

bool options_help(int argc, char **argv)
{
	if (argc != 2 || (strcmp(argv[1], "--help") != 0 && strcmp(argv[1], "-h") != 0))
		return false;
	fputs(help, stdout);
	return true;
}

bool options_read(struct options *o, int argc, char **argv, char *why, size_t size)
{
	const char *namespace = getenv("CONTAINER_NAMESPACE");

	memset(o, 0, sizeof(*o));
	o->max_file = 1;
	strcpy(o->agent, DEFAULT_AGENT);
	o->container = getenv("CONTAINER_ID");
	if (!o->container || !namespace) {
		snprintf(why, size, "it is started by containerd: --log-uri binary://%s", argv[0]);
		return false;
	}
	if (!options_identifier(o->container) || !options_identifier(namespace)) {
		snprintf(why, size, "CONTAINER_ID and CONTAINER_NAMESPACE are no identifiers");
		return false;
	}
	snprintf(o->path, sizeof(o->path), DEFAULT_DIR "/%s/%s/%s-json.log", namespace,
		 o->container, o->container);
	for (int i = 1; i < argc; i += 2) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";

		if (!options_set(o, argv[i], value)) {
			snprintf(why, size, "%.64s=%.256s: there are %s", argv[i], value, usage);
			return false;
		}
	}
	if (o->compress && (o->max_file < 2 || o->max_size == 0)) {
		snprintf(why, size, "compress needs max-size, and a max-file of 2 or more");
		return false;
	}
	return true;
}
