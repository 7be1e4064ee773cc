package programs

// The limits of docs/LIMITS.md that pending cases meet.
const (
	loopbackNames = "an own server that a rule publishes has the host's names on the own loopback"
	ownDatagrams  = "a UDP socket cannot connect to an own server that a rule publishes"
	boundPort     = "a UDP socket that is bound to a port sends from the container's own namespace"
	hostAddress   = "bind(2) to an address of the host needs a rule"
	noInterface   = "no interface of the container has the published address"
)

// pending are the cases that do not work in a container yet, with the reason. They have to fail
// as their file "fails" says.
var pending = map[string]string{
	"bind-address":  hostAddress,
	"dnsmasq":       ownDatagrams,
	"dnsmasq-bound": ownDatagrams,
	"dnsmasq-tcp":   noInterface,
	"ftp-server":    hostAddress,
	"go":            loopbackNames,
	"names":         loopbackNames,
	"nginx":         loopbackNames,
	"ntp":           boundPort,
	"php":           loopbackNames,
	"postgres":      loopbackNames,
	"redis":         loopbackNames,
	"tftp-own":      loopbackNames,
	"unbound":       ownDatagrams,
}
