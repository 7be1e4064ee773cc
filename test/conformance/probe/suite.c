// SPDX-License-Identifier: Apache-2.0
/*
 * Many cases in one container: "probe suite DIR JOBS key=value..." reads lines
 * "CASE PORT" and runs each case as a process of its own, JOBS at a time.
 *
 * A case is a new image of this program: the loader brings the shim anew. The
 * output of a case is in DIR/CASE.out and DIR/CASE.err. When a case ends, the
 * suite prints "CASE exit N" or "CASE signal N". A case that hangs ends itself
 * (probe_hung). A case that cannot do so is killed with the suite, by whoever
 * waits for the next line.
 */
#include "probe.h"

#define SUITE_JOBS 32

struct suite_job {
	pid_t pid; /* 0 when there is none */
	char name[64];
};

/* A descriptor for one stream of a case, under the number that it is to have. */
static void suite_stream(const char *dir, const char *name, const char *suffix, int number)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/%s.%s", dir, name, suffix);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0 || dup2(fd, number) < 0)
		probe_die(path);
}

static void suite_case(char **argv, char *name, const char *port) __attribute__((noreturn));

static void suite_case(char **argv, char *name, const char *port)
{
	char *args[32] = {argv[0], name}, setting[32];
	int n = 2, nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);

	snprintf(setting, sizeof(setting), "port=%s", port);
	args[n++] = setting;
	for (char **p = argv + 4; *p && n < 31; p++)
		args[n++] = *p;
	if (nothing < 0 || dup2(nothing, 0) < 0)
		probe_die("open /dev/null");
	suite_stream(argv[2], name, "err", 2);
	suite_stream(argv[2], name, "out", 1);
	execv("/proc/self/exe", args);
	probe_die("execv");
}

/* Waits for a job to end, says how, and returns its place, which is free again. */
static struct suite_job *suite_wait(struct suite_job *jobs)
{
	struct suite_job *job = jobs;
	int status;
	pid_t pid = wait(&status);

	if (pid < 0)
		probe_die("wait");
	while (job->pid != pid)
		job++;
	job->pid = 0;
	if (WIFSIGNALED(status))
		printf("%s signal %d\n", job->name, WTERMSIG(status));
	else
		printf("%s exit %d\n", job->name, WEXITSTATUS(status));
	fflush(stdout);
	return job;
}

int probe_suite(char **argv)
{
	int limit = atoi(argv[3]), running = 0;
	struct suite_job jobs[SUITE_JOBS] = {0}, *job = jobs;
	char name[64], port[16];

	if (limit < 1 || limit > SUITE_JOBS)
		return 2;
	while (scanf("%63s %15s", name, port) == 2) {
		job = running < limit ? &jobs[running++] : suite_wait(jobs);
		strcpy(job->name, name);
		job->pid = probe_fork();
		if (job->pid == 0)
			suite_case(argv, job->name, port);
	}
	while (running--)
		suite_wait(jobs);
	return 0;
}
