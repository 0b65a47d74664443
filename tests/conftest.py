"Settings that must stand before torch is imported, and one hypothesis profile for every test"
import os

os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')     # spinning threads on a busy machine cost far more than they give
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('TOKENIZERS_PARALLELISM', 'false')
os.environ['PLOTLY_RENDERER'] = 'plotly_mimetype'

from hypothesis import HealthCheck, settings

settings.register_profile('project', deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile('project')
