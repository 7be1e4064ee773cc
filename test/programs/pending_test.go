package programs

// The limits of docs/LIMITS.md that pending cases meet.
const (
	noInterface = "no interface of the container has the published address"
)

// pending are the cases that do not work in a container yet, with the reason. They have to fail
// as their file "fails" says.
var pending = map[string]string{
	"dnsmasq":     noInterface,
	"dnsmasq-tcp": noInterface,
}
