/*
 * interrupted ROUNDS: binds sockets while signals come at all times, whose handler lets calls be
 * restarted, and prints how many binds went otherwise than they have to.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static volatile sig_atomic_t signals, in_round;

/* The next signal comes later after some in one round: else, on a busy machine, no call ends. */
static void set_alarm(void)
{
	int doubled = in_round / 4 < 12 ? in_round / 4 : 12;
	struct itimerval once = {{0, 0}, {0, 150 << doubled}};

	setitimer(ITIMER_REAL, &once, NULL);
}

static void count(int sig)
{
	(void)sig;
	signals++;
	in_round++;
	set_alarm();
}

int main(int argc, char **argv)
{
	struct sigaction act = {.sa_handler = count, .sa_flags = SA_RESTART};
	int wrong = 0, rounds = argc == 2 ? atoi(argv[1]) : 0;

	if (sigaction(SIGALRM, &act, NULL) != 0)
		return 1;
	for (int i = 0; i < rounds; i++) {
		struct sockaddr_in any = {.sin_family = AF_INET};
		socklen_t length = sizeof(any);
		int s;

		in_round = 0;
		set_alarm();
		s = socket(AF_INET, SOCK_STREAM, 0);
		if (s < 0 || bind(s, (struct sockaddr *)&any, length) != 0 ||
		    getsockname(s, (struct sockaddr *)&any, &length) != 0 || any.sin_port == 0) {
			fprintf(stderr, "round %d: %s\n", i, strerrorname_np(errno));
			wrong++;
		}
		close(s);
	}
	printf("%d wrong, %s\n", wrong, signals > rounds / 100 ? "interrupted" : "not interrupted");
	return 0;
}
