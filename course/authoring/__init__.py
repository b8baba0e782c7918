"""From one source a lesson to the notebook that a learner opens.

``source`` reads a lesson (py:percent text with a short header), ``numbers`` sets computed values
into its prose, ``glossary`` links its terms, ``page`` adds what every page has, ``execute`` runs it
in a fresh kernel, ``outputs`` takes out what differs from run to run, ``rules`` reads the result,
and ``build`` puts them in order. docs/authoring.md tells authors how to write for it.
"""
