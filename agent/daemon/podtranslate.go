package daemon

import (
	"fmt"
	"reflect"

	"github.com/tsugiki/tsugiki/agent/rules"
	"github.com/tsugiki/tsugiki/api"
)

// checkNetwork refuses a pod that has a network and whose IPv4 is to be translated. The runtime has
// looked into the pod's network namespace.
func checkNetwork(r *api.Registration, given *rules.Rules) error {
	if given.Translation == nil || r.LoopbackOnly {
		return nil
	}
	return fmt.Errorf("%w: IPv4 is translated in pods that have no network but a loopback, and this one has another; give the pod the RuntimeClass of such pods (runtimeClassName: tsugiki-translate), and their network to its runtime in containerd's configuration (cni_conf_dir)",
		rules.ErrNotAllowed)
}

// restartTranslate is what a container is told to need a new one for, if IPv4 is to be translated
// otherwise than it is.
const restartTranslate = "translate"

// retranslates tells whether IPv4 of a container is to be translated otherwise than it was when the
// container was registered, apart from its resolvers, which may change. What is to be translated no more loses its
// rules and resolvers, and needs nothing else.
func retranslates(had *api.Translate, want api.Rules) bool {
	wanted, err := rules.Parse(want)
	if err != nil || wanted.Translation == nil {
		return false
	}
	if had == nil {
		return true
	}
	now := wanted.Texts().Translate
	now.DNS = had.DNS
	return !reflect.DeepEqual(had, now)
}
