// Package deploy tests the files of the folder deploy: that the chart makes of its default values
// what the plain manifests have, checks its values, and leaves nothing behind; and that documents have the
// dashboard's metrics, and the reasons of events and conditions.
//
// It has no code but tests. Those with an API server need root and kube-apiserver, the others no privilege.
package deploy
