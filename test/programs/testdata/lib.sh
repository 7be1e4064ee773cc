# Functions of the cases' scripts. Nothing here has a limit of time: the test ends what hangs.

servers=

# serve NAME COMMAND... starts a server, whose output is the file NAME.log.
serve() {
	log=$1.log
	shift
	"$@" >"$log" 2>&1 </dev/null &
	servers="$! $servers"
}

# stop ends the servers. inside.sh ends with it.
stop() {
	[ -z "$servers" ] || kill $servers
	wait
}

# again COMMAND... repeats a command until it succeeds.
again() {
	until "$@" >/dev/null 2>&1; do sleep 0.05; done
}

# try COMMAND... prints with which status a command has failed.
try() {
	"$@" || echo "status $?"
}

# ask ARG... asks a name server once.
ask() {
	try dig +short +tries=1 +time=60 "$@"
}

# listens ADDR:PORT waits until a server listens.
listens() {
	again socat -u /dev/null "TCP:$1"
}

# outside ARG... runs outside.sh on the remote and waits for it to end.
outside() {
	echo "outside $*"
	read -r _
}
