// SPDX-License-Identifier: Apache-2.0
/* What a host socket tells of the host's interfaces, addresses and neighbours: ioctl(2). */
#include "attack.h"

#include <arpa/inet.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>

#define I386_IOCTL 54
#define X32_IOCTL  (0x40000000 | 514)
/* linux/wireless.h, and what drivers of tunnels and bridges answer */
#define SIOCGIWNAME   0x8B01
#define SIOCGETTUNNEL SIOCDEVPRIVATE

static const struct {
	const char *name;
	unsigned long request;
} interfaces_reads[] = {
	{"SIOCGIFFLAGS", SIOCGIFFLAGS},	    {"SIOCGIFADDR", SIOCGIFADDR},
	{"SIOCGIFDSTADDR", SIOCGIFDSTADDR}, {"SIOCGIFBRDADDR", SIOCGIFBRDADDR},
	{"SIOCGIFNETMASK", SIOCGIFNETMASK}, {"SIOCGIFMETRIC", SIOCGIFMETRIC},
	{"SIOCGIFMTU", SIOCGIFMTU},	    {"SIOCGIFHWADDR", SIOCGIFHWADDR},
	{"SIOCGIFINDEX", SIOCGIFINDEX},	    {"SIOCGIFTXQLEN", SIOCGIFTXQLEN},
	{"SIOCGIFMAP", SIOCGIFMAP},
};

/* For other ABIs: the first 32 bytes of struct ifreq are the same in all of them. */
struct interfaces_narrow {
	char name[IFNAMSIZ];
	char data[16];
};

static void interfaces_step(char *step, size_t size, const char *kind, const char *name)
{
	snprintf(step, size, "%s %s", kind, name);
}

/* By a process of its own, which an engine's profile may kill for it. */
static void interfaces_x32(const char *step, int fd, unsigned long request, void *low)
{
	pid_t child = fork();
	int status = 0;

	if (child == 0)
		_exit(syscall(X32_IOCTL, fd, request, low) == 0 ? 0 : errno);
	waitpid(child, &status, 0);
	errno = WIFSIGNALED(status) ? ENOSYS : WEXITSTATUS(status);
	attack_say(step, errno == 0 ? 0 : -1);
}

static void interfaces_read(int fd, const char *kind, const char *link)
{
	char step[80];

	for (size_t i = 0; i < sizeof(interfaces_reads) / sizeof(interfaces_reads[0]); i++) {
		struct ifreq r = {0};
		struct interfaces_narrow *low = attack_low();

		strncpy(r.ifr_name, link, IFNAMSIZ - 1);
		interfaces_step(step, sizeof(step), kind, interfaces_reads[i].name);
		attack_say(step, ioctl(fd, interfaces_reads[i].request, &r));
		memcpy(low, &r, IFNAMSIZ);
		snprintf(step, sizeof(step), "%s i386 %s", kind, interfaces_reads[i].name);
		attack_say(step, attack_i386(I386_IOCTL, fd, (long)interfaces_reads[i].request,
					     (long)low, 0, 0));
		memset(low, 0, sizeof(*low));
		memcpy(low, r.ifr_name, IFNAMSIZ);
		snprintf(step, sizeof(step), "%s x32 %s", kind, interfaces_reads[i].name);
		interfaces_x32(step, fd, interfaces_reads[i].request, low);
	}
}

/* What is not told of by a fixed structure. */
static void interfaces_more(int fd, const char *kind, const char *link)
{
	static const struct {
		const char *name;
		unsigned long request;
		unsigned int command;
	} more[] = {
		{"ETHTOOL_GDRVINFO", SIOCETHTOOL, ETHTOOL_GDRVINFO},
		{"ETHTOOL_GPERMADDR", SIOCETHTOOL, ETHTOOL_GPERMADDR},
		{"ETHTOOL_GLINK", SIOCETHTOOL, ETHTOOL_GLINK},
		{"SIOCGETTUNNEL", SIOCGETTUNNEL, 0},
		{"SIOCGIWNAME", SIOCGIWNAME, 0},
	};
	char step[80];

	for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
		/* struct ethtool_perm_addr has the room after the command. */
		unsigned int data[64] = {more[i].command,
					 more[i].command == ETHTOOL_GPERMADDR ? 32 : 0};
		struct ifreq r = {.ifr_data = (void *)data};

		strncpy(r.ifr_name, link, IFNAMSIZ - 1);
		interfaces_step(step, sizeof(step), kind, more[i].name);
		attack_say(step, ioctl(fd, more[i].request, &r));
	}
}

static void interfaces_neighbour(int fd, const char *kind, const char *link, const char *neighbour)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	struct arpreq r = {0};
	char step[80];

	inet_pton(AF_INET, neighbour, &address.sin_addr);
	memcpy(&r.arp_pa, &address, sizeof(address));
	strncpy(r.arp_dev, link, sizeof(r.arp_dev) - 1);
	memcpy(attack_low(), &r, sizeof(r));
	interfaces_step(step, sizeof(step), kind, "SIOCGARP");
	attack_say(step, ioctl(fd, SIOCGARP, &r));
	interfaces_step(step, sizeof(step), kind, "i386 SIOCGARP");
	attack_say(step, attack_i386(I386_IOCTL, fd, SIOCGARP, (long)attack_low(), 0, 0));
}

/* "KIND listed: NAME ADDRESS" for each of them. */
static void interfaces_list(int fd, const char *kind)
{
	struct ifreq all[64];
	struct ifconf c = {.ifc_len = sizeof(all), .ifc_req = all}, empty = {0};
	struct {
		int32_t length;
		uint32_t buffer;
		struct interfaces_narrow all[64];
	} *low = attack_low();
	char step[80];

	interfaces_step(step, sizeof(step), kind, "SIOCGIFCONF");
	attack_say(step, ioctl(fd, SIOCGIFCONF, &c));
	interfaces_step(step, sizeof(step), kind, "SIOCGIFCONF's length");
	attack_say(step,
		   ioctl(fd, SIOCGIFCONF, &empty) == 0 && empty.ifc_len == c.ifc_len ? 0 : -1);
	interfaces_step(step, sizeof(step), kind, "listed");
	for (int i = 0; i < c.ifc_len / (int)sizeof(all[0]); i++)
		attack_note(step, "%s %s", all[i].ifr_name,
			    inet_ntoa(((struct sockaddr_in *)&all[i].ifr_addr)->sin_addr));
	low->length = sizeof(low->all);
	low->buffer = (uint32_t)(uintptr_t)low->all;
	interfaces_step(step, sizeof(step), kind, "i386 SIOCGIFCONF");
	if (attack_say(step, attack_i386(I386_IOCTL, fd, SIOCGIFCONF, (long)low, 0, 0)) < 0)
		return;
	interfaces_step(step, sizeof(step), kind, "listed");
	for (int i = 0; i < low->length / (int)sizeof(low->all[0]); i++)
		attack_note(step, "%s %s", low->all[i].name,
			    inet_ntoa(*(struct in_addr *)&low->all[i].data[4]));
}

/* A socket that a rule has brought to the host. */
static int interfaces_socket(const char *text, int type)
{
	struct attack_addr to = attack_addr(text);
	int fd = attack_socket(to.sa.sa_family, type);

	if (connect(fd, &to.sa, to.len) < 0 && type == SOCK_DGRAM)
		attack_die("connect");
	return fd;
}

static bool interfaces_elsewhere(int fd)
{
	int own = socket(AF_UNIX, SOCK_DGRAM, 0);
	bool is = attack_netns(fd) != attack_netns(own);

	close(own);
	return is;
}

/* "interfaces LINK NEIGHBOUR TO...": what a socket that is connected to each TO tells. */
static int interfaces_ask(int argc, char **argv)
{
	static const int types[] = {SOCK_STREAM, SOCK_DGRAM};

	for (int i = 2; i < argc; i++) {
		for (int k = 0; k < 2; k++) {
			int fd = interfaces_socket(argv[i], types[k]);
			char kind[16], step[80];

			snprintf(kind, sizeof(kind), "%s%c", k ? "udp" : "tcp",
				 argv[i][0] == '[' ? '6' : '4');
			interfaces_step(step, sizeof(step), kind, "elsewhere");
			attack_note(step, "%s", interfaces_elsewhere(fd) ? "yes" : "no");
			interfaces_list(fd, kind);
			interfaces_read(fd, kind, argv[0]);
			interfaces_more(fd, kind, argv[0]);
			interfaces_neighbour(fd, kind, argv[0], argv[1]);
			interfaces_neighbour(fd, kind, "", argv[1]);
			close(fd);
		}
	}
	return 0;
}

static struct {
	int number, own, host;
	atomic_int flips;
	atomic_bool stop;
} flip;

static void *interfaces_flip(void *arg)
{
	while (!atomic_load(&flip.stop)) {
		dup2(flip.host, flip.number);
		dup2(flip.own, flip.number);
		atomic_fetch_add(&flip.flips, 1);
	}
	return arg;
}

/* What one call after the other is told while the number is now this, now that. */
static bool interfaces_told(const char *link, bool *socket)
{
	struct ethtool_drvinfo driver = {.cmd = ETHTOOL_GDRVINFO};
	struct ifreq r = {0}, ethtool = {.ifr_data = (void *)&driver}, all[64];
	struct ifconf c = {.ifc_len = sizeof(all), .ifc_req = all};
	bool told = false;

	strncpy(r.ifr_name, link, IFNAMSIZ - 1);
	strncpy(ethtool.ifr_name, link, IFNAMSIZ - 1);
	told |= ioctl(flip.number, SIOCGIFHWADDR, &r) == 0;
	*socket |= told || errno == ENODEV;
	told |= ioctl(flip.number, SIOCETHTOOL, &ethtool) == 0;
	if (ioctl(flip.number, SIOCGIFCONF, &c) == 0)
		for (int i = 0; i < c.ifc_len / (int)sizeof(all[0]); i++)
			told |= strcmp(all[i].ifr_name, link) == 0;
	return told;
}

static int interfaces_family(int fd)
{
	int family = -1;
	socklen_t length = sizeof(family);

	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &length);
	return family;
}

/* "interfaces-flip LINK TO FLIPS OWN": the number of a host socket is now and then that of
 * a pipe, or of a socket of the container's own. */
static int interfaces_race(int argc, char **argv)
{
	int pipes[2], flips = atoi(argv[2]), told = 0;
	bool socket_seen = false, other_seen = false;
	pthread_t thread;

	attack_need("pipe", pipe(pipes));
	flip.own = strcmp(argv[argc - 1], "pipe") == 0 ? pipes[0] : socket(AF_UNIX, SOCK_DGRAM, 0);
	flip.host = interfaces_socket(argv[1], SOCK_DGRAM);
	flip.number = dup2(flip.own, 100);
	attack_note("elsewhere", "%s", interfaces_elsewhere(flip.host) ? "yes" : "no");
	pthread_create(&thread, NULL, interfaces_flip, NULL);
	for (int i = 0;
	     atomic_load(&flip.flips) < flips || i < flips / 4 || !socket_seen || !other_seen;
	     i++) {
		told += interfaces_told(argv[0], &socket_seen);
		other_seen |= interfaces_family(flip.number) != AF_INET;
	}
	atomic_store(&flip.stop, true);
	pthread_join(thread, NULL);
	attack_note("socket", "%s", socket_seen ? "seen" : "not seen");
	attack_note("other", "%s", other_seen ? "seen" : "not seen");
	attack_note("told", "%s", told > 0 ? "some" : "nothing");
	return 0;
}

const struct attack_case interfaces_cases[] = {
	{"interfaces", interfaces_ask},
	{"interfaces-flip", interfaces_race},
	{0},
};
